"""Published values, by id and by their other fields.

Owns the reading of `reference/cells.csv` and `reference/cells_*.csv` below `conf/` folders, and of what is
known of single values: which a fit determines (`determined.csv`), which the paper's own numbers exclude
(`contradictions.csv`). Must not know records, nor what is compared with a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

from repro.core.errors import InputError
from repro.core.paths import conf_folders, merge_entries
from repro.core.reading import csv_reader
from repro.core.registry import unknown


@dataclass(frozen=True)
class PublishedCell:
    """One published value or claim; conventions are in `conf/reference/README.md`.

    Attributes:
        id: its name, which never changes.
        paper: `edgellm`, `lever`, `mllm_npu`, `elastilm` or `ghidorah`; `mllm_npu_v2` for the second version
            of mllm-NPU.
        artifact: the table or figure, or `text`.
        section: of the paper.
        device: the device of the measurement, "" if the paper does not say (as in every following column).
        system: the method, under the paper's name.
        model: the target, under the paper's name.
        draft_model: its draft.
        dataset: the workload, with one spelling for all papers.
        condition: further conditions, joined by "; ".
        metric: what is measured.
        value_low: its lower end; None for a claim that gives only an upper bound.
        value_high: its upper end; None for a claim that gives only a lower bound; equal for a single value.
        unit: of both.
        relative_to: the baseline of a ratio or a difference.
        note: doubts about it.
        same_as: id of a cell of an earlier version of the paper that prints the same value.
        determined: what makes ours for it follow from a fit or a setting; "" if it can miss.
        contradicted: the entry of `errata.csv` that proves that the paper's other numbers exclude it.
    """

    id: str
    paper: str
    artifact: str
    section: str
    device: str
    system: str
    model: str
    draft_model: str
    dataset: str
    condition: str
    metric: str
    value_low: float | None
    value_high: float | None
    unit: str
    relative_to: str
    note: str
    same_as: str = ""
    determined: str = ""
    contradicted: str = ""

    @property
    def conditions(self) -> dict[str, str]:
        """The parts of the condition that have the form `key=value`."""
        pairs = (part.partition("=") for part in self.condition.split("; "))
        return {key: value for key, equals, value in pairs if equals}


COLUMNS = tuple(f.name for f in fields(PublishedCell) if f.name not in ("determined", "contradicted"))
"""The columns of a file of published values; the last may be absent."""


def load_cells(folders: Sequence[Path] | None = None) -> dict[str, PublishedCell]:
    """Every published value by id, in the order of the files.

    Args:
        folders: `conf/` folders that may have a `reference/cells.csv` and further `reference/cells_*.csv`;
            default `conf_folders()`.

    Raises:
        InputError: a file of the project has other columns, an id occurs twice, or a value is not a number.
    """
    conf_dirs = conf_folders() if folders is None else folders
    cells = merge_entries(conf_dirs, "reference/cells*.csv", read_cells, "published cell")
    folder = conf_dirs[0] / "reference"
    for name, remark in _remarks(folder / "determined.csv", "why").items():
        cells[name] = replace(find(cells, name), determined=remark)
    for name, proof in _remarks(folder / "contradictions.csv", "proof").items():
        cells[name] = replace(find(cells, name), contradicted=proof)
    return cells


def _remarks(path: Path, field: str) -> dict[str, str]:
    """A field of a file's lines by id; none if there is no such file."""
    if not path.is_file():
        return {}
    with csv_reader(path) as reader:
        if missing_columns := [name for name in ("id", field) if name not in (reader.fieldnames or ())]:
            raise InputError(f"{path.name} has no column {missing_columns[0]!r}")
        return {line["id"]: line[field] for line in reader if line[field]}


def read_cells(path: Path) -> dict[str, PublishedCell]:
    """The published values of a file; errors as `load_cells`."""
    file_stat = path.stat()
    return dict(_read_cells(path, file_stat.st_mtime_ns, file_stat.st_size))


@cache
def _read_cells(path: Path, changed_ns: int, file_size: int) -> dict[str, PublishedCell]:
    """The values of a file; `changed` and `file_size` are part of the cache key."""
    columns = [*COLUMNS]
    cells: dict[str, PublishedCell] = {}
    with csv_reader(path) as reader:
        if list(reader.fieldnames or ()) not in (columns, columns[:-1]):
            raise InputError(
                f"{path.name} has the columns {reader.fieldnames}; it must have {columns[:-1]}, and may have "
                f"{columns[-1]!r} after them"
            )
        for row in reader:
            if None in row or None in row.values():
                raise InputError(
                    f"{path.name}, line {reader.line_num}: it must have {len(reader.fieldnames or ())} fields"
                )
            cell = _cell(row, path.name)
            if cell.id in cells:
                raise InputError(f"{path.name} has the id {cell.id!r} twice")
            cells[cell.id] = cell
    return cells


def find(cells: Mapping[str, PublishedCell], name: str) -> PublishedCell:
    """The cell with that id.

    Raises:
        InputError: it does not exist; the error suggests similar ids of the same table or figure, or similar
            tables and figures.
    """
    if name in cells:
        return cells[name]
    artifact = _artifact_of(name)
    if neighbours := [cell_id for cell_id in cells if _artifact_of(cell_id) == artifact]:
        raise InputError(unknown("published cell", name, neighbours))
    raise InputError(
        f"published cell {name!r}: {unknown('table or figure', artifact, {_artifact_of(c) for c in cells})}"
    )


def select(cells: Mapping[str, PublishedCell], **texts: str) -> list[PublishedCell]:
    """The cells whose fields have these values, in the file's order: `select(cells, paper="lever")`.

    Raises:
        InputError: a field does not exist, or no cell has that value in it.
    """
    names = [name for name in COLUMNS if not name.startswith("value_")]
    for field, text in texts.items():
        if field not in names:
            raise InputError(unknown("field of a published cell", field, names))
        if text not in (choices := {str(getattr(cell, field)) for cell in cells.values()}):
            raise InputError(unknown(f"{field} of a published cell", text, choices))
    return [c for c in cells.values() if all(getattr(c, f) == text for f, text in texts.items())]


def _artifact_of(name: str) -> str:
    """Paper and table or figure, the first two parts of an id."""
    return ".".join(name.split(".")[:2])


def _cell(row: dict[str, str], file: str) -> PublishedCell:
    try:
        low, high = (float(row[key]) if row[key] else None for key in ("value_low", "value_high"))
    except ValueError as error:
        raise InputError(f"{file}, cell {row['id']!r}: {error}") from None
    if low is None and high is None:
        raise InputError(f"{file}, cell {row['id']!r} has no value")
    texts = {key: text for key, text in row.items() if not key.startswith("value_")}
    return PublishedCell(**texts, value_low=low, value_high=high)
