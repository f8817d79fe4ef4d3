"""Claims in a paper's prose, compared with values of our tables.

Owns which table values a claim is compared with, and how. Reads the tables' CSV files, and of claims over
several figures the cells that their lines name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from repro.core.errors import InputError
from repro.core.reading import csv_reader
from repro.core.registry import unknown
from repro.core.typed import typed
from repro.libraries import Array, np
from repro.records.record import Record
from repro.records.results import Results
from repro.reports.comparison.certain import DERIVED, find_certain
from repro.reports.comparison.comparison import Comparison, Ends, Figure, in_unit
from repro.reports.files import path_of
from repro.reports.intervals.bootstrap import RESAMPLES
from repro.reports.intervals.bootstrap import ends as ends_of
from repro.reports.intervals.samples import Samples
from repro.reports.reference.reference import PublishedCell, find
from repro.reports.spec.spec import ColumnSpec, TableSpec
from repro.reports.tables.aggregate import column_draws
from repro.reports.tables.bands import FigureId, band_range, read_draws
from repro.reports.tables.build import SHORT_LENGTH
from repro.reports.tables.table import MARKS

Line = Mapping[str, str]
"""A line of a table's CSV file; `table` names the table where lines of several are read."""

CLAIM = "claim"
"""Value of the `column` field of a claim in a CSV file."""


QUOTIENT_TAKES = ("quotient", "gain_quotient")


@dataclass(frozen=True)
class ClaimSpec:
    """A published claim, with the table values to compare it with or the reason why there are none.

    Attributes:
        id: of the published cell.
        tables: experiments whose tables hold our values.
        columns: keys of the columns to read, in which `*` stands for any text.
        rows: ids of the rows to read, in the same way; empty for all rows.
        take: how the values are reduced: the `only` one, `min`, `max`, `mean`, `median`, their `range`, the
            `quotient` of the first row's mean and the second's, or the quotient of what both are above 1
            (`gain_quotient`).
        absent: why we have no value.
        note: a remark for the page.
    """

    id: str
    tables: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    take: Literal["only", "min", "max", "mean", "median", "range", "quotient", "gain_quotient"] = "only"
    absent: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if bool(self.absent) == bool(self.tables) or bool(self.tables) != bool(self.columns):
            raise InputError(f"claim {self.id!r} needs either `tables` and `columns`, or `absent`")
        if self.take in QUOTIENT_TAKES and len(self.rows) != 2:
            raise InputError(f"claim {self.id!r} takes a quotient of two `rows`, and names {len(self.rows)}")


@dataclass(frozen=True)
class ClaimsSpec:
    """The `table:` section of a claims experiment; it must list every prose claim of `paper`, but
    those that repeat an earlier version's value, which that version's page has.

    It may list further published values that follow from figures of its tables.

    In the section's short form a claim's id and tables may lack the paper's name, `ids` lists several claims
    that are compared with the same values, and the section's `rows` names groups of rows.
    """

    experiment: str
    title: str
    paper: str
    claims: tuple[ClaimSpec, ...]
    footnotes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, experiment: str, section: Mapping[str, Any]) -> ClaimsSpec:
        """Parse a section of plain dictionaries and lists, of which docs/tables.md gives an example.

        Raises:
            InputError: it is invalid.
        """
        full_section = expand_claims(experiment, section)
        return typed(cls, {"experiment": experiment, **full_section}, f"table {experiment!r}")


def expand_claims(experiment: str, section: Mapping[str, Any]) -> dict[str, Any]:
    """A section with one entry for each claim, whole ids and tables, and no groups of rows."""
    other_entries = {name: value for name, value in section.items() if name not in ("rows", "claims")}
    entries, groups = section.get("claims") or (), dict(section.get("rows") or {})
    where = f"table {experiment!r}"
    folder = experiment.rpartition("/")[0]
    paper = str(section.get("paper", folder))
    claims = [claim for entry in entries for claim in expand_entry(entry, folder, paper, groups, where)]
    return {**other_entries, "claims": claims}


LIST_FIELDS = ("tables", "columns", "rows")
UNPREFIXED_ID = re.compile(r"(abstract|text|fig\w*|table\w*)\.")
"""How an id begins that lacks the paper's name."""


def expand_entry(
    entry: Any, folder: str, paper: str, groups: Mapping[str, Sequence[str]], where: str
) -> list[dict[str, Any]]:
    """The claims of an entry, which has one `id` or several `ids` that are compared with the same values."""
    if not isinstance(entry, Mapping) or ("id" in entry) == ("ids" in entry):
        raise InputError(f"{where}: {entry!r} must be a claim with `id`, or several with `ids`")
    claim = {name: value for name, value in entry.items() if name not in ("id", "ids")}
    for name in LIST_FIELDS:
        if isinstance(claim.get(name), str):
            claim[name] = [claim[name]]
    claim["tables"] = [t if "/" in t or not folder else f"{folder}/{t}" for t in claim.get("tables", ())]
    claim["rows"] = [row for name in claim.get("rows", ()) for row in groups.get(name, [name])]
    names = [entry["id"]] if "id" in entry else entry["ids"]
    return [{"id": f"{paper}.{n}" if UNPREFIXED_ID.match(str(n)) else n, **claim} for n in names]


@dataclass(frozen=True)
class Claim:
    """A claim with our values for it.

    Attributes:
        spec: the claim as configured.
        comparison: the published value beside ours.
        lines: lines of our tables that have a value for it.
        failed: number of selected lines without a value, because a cell failed or was not run.
    """

    spec: ClaimSpec
    comparison: Comparison
    lines: tuple[Line, ...] = ()
    failed: int = 0

    @property
    def ours(self) -> Ends | None:
        """Low and high end of our values, equal for a single value."""
        figures = self.comparison.ours
        return (figures[0].value, figures[-1].value) if figures else None

    @property
    def verdict(self) -> str:
        """The verdict with the point verdict beside it if they differ; why there is none."""
        verdict, point = self.comparison.verdict, self.comparison.point
        if verdict is None:
            return "absent" if self.spec.absent else "no figure"
        return verdict if verdict == point else f"{verdict} (our figure alone: {point})"


@dataclass(frozen=True)
class _Figures:
    """What a claim takes of lines' figures, with interval and band.

    Those of a single line are its own. Of several the values are taken draw by draw: ends of intervals are no
    draws, and neither their mean nor their extremes is the end of an interval.
    """

    spec: ClaimSpec
    lines: Sequence[Line]
    draws: CommittedDraws | None

    def figures(self) -> tuple[Figure, ...]:
        """Our value, or the least and the most; none of no lines."""
        values = self._reduce([float(line["ours"]) for line in self.lines])
        if values is None:
            return ()
        values_shown = values if self.spec.take == "range" and values[0] != values[1] else values[:1]
        if len(self.lines) == 1:
            ends = (
                ends_in(self.lines[0], *fields) for fields in (("low", "high"), ("band_low", "band_high"))
            )
            return (Figure(float(values[0]), *ends),)
        prompt_draws, machine_draws = self._reduce(self._prompt_draws()), self._reduce(self._machine_draws())
        return tuple(
            Figure(
                float(value),
                ends_of(prompt_draws[index]) if prompt_draws else None,
                band_range(machine_draws[index], float(value)) if machine_draws else None,
            )
            for index, value in enumerate(values_shown)
        )

    def _prompt_draws(self) -> list[Array]:
        """The values of all lines over common draws of prompts; none if those of one are not known.

        A line without `n` rests on no prompt and has the same value in each draw.
        """
        if self.draws is None or not any(line.get("n") for line in self.lines):
            return []
        pairs = list(zip(self.lines, self.draws.prompt_draws(self.lines), strict=True))
        if any(values is None and line.get("n") for line, values in pairs):
            return []
        return [
            np.full(RESAMPLES, float(line["ours"])) if values is None else values for line, values in pairs
        ]

    def _machine_draws(self) -> list[Array]:
        """The values of all lines on the same drawn machines; none if those of one are not known."""
        draws_by_line = [] if self.draws is None else self.draws.machine_draws(self.lines)
        draws = [values for values in draws_by_line if values is not None]
        draw_count = min(map(len, draws), default=0)
        return [values[:draw_count] for values in draws] if len(draws) == len(self.lines) else []

    def _reduce(self, values: Sequence[Any]) -> tuple[Any, Any] | None:
        """The least and the most that the lines' values reduce to, or those of each draw; None of none."""
        if not values:
            return None
        if self.spec.take not in QUOTIENT_TAKES:
            return REDUCTIONS[self.spec.take](np.array(values))
        values_by_row = [
            [value for line, value in zip(self.lines, values, strict=True) if fnmatchcase(line["id"], row)]
            for row in self.spec.rows
        ]
        if not all(values_by_row):
            return None
        subtrahend = 1.0 if self.spec.take == "gain_quotient" else 0.0
        numerators, denominators = (np.mean(row_values, axis=0) - subtrahend for row_values in values_by_row)
        if np.min(denominators) <= 0 <= np.max(denominators):
            return None  # what is divided by may be 0
        return (numerators / denominators,) * 2


REDUCTIONS: dict[str, Callable[[Array], tuple[Any, Any]]] = {
    "only": lambda values: (values[0],) * 2,
    "min": lambda values: (values.min(0),) * 2,
    "max": lambda values: (values.max(0),) * 2,
    "mean": lambda values: (values.mean(0),) * 2,
    "median": lambda values: (np.median(values, axis=0),) * 2,
    "range": lambda values: (values.min(0), values.max(0)),
}
"""How values [lines], or [lines, draws], are reduced to the least and the most."""


def ends_in(line: Line, low: str, high: str) -> Ends | None:
    """The interval or band in these fields of a line; None if one is empty."""
    return (float(line[low]), float(line[high])) if line.get(low) and line.get(high) else None


def compare(
    spec: ClaimsSpec, folder: Path, cells: Mapping[str, PublishedCell], draws: CommittedDraws | None = None
) -> list[Claim]:
    """Every claim with our values, read from the tables' CSV files in a folder.

    Without `draws` a claim over several figures has neither interval nor band.

    Raises:
        InputError: the claims are not those of the paper; a table does not exist yet, or lacks the row or
            column.
    """
    require_complete(spec, cells)
    claims = claims_of(spec.claims, folder, cells, draws)
    comparisons = find_certain([claim.comparison for claim in claims])
    return [replace(claim, comparison=result) for claim, result in zip(claims, comparisons, strict=True)]


def claims_of(
    specs: Sequence[ClaimSpec],
    folder: Path,
    cells: Mapping[str, PublishedCell],
    draws: CommittedDraws | None = None,
) -> list[Claim]:
    """Claims with our values, whatever else the paper claims; errors as `compare`, but for complete lists."""
    names = list(dict.fromkeys(table for spec in specs for table in spec.tables))
    if missing_tables := [name for name in names if not path_of(folder, name, "csv").is_file()]:
        commands = "; ".join(f"experiment={name}" for name in missing_tables)
        raise InputError(f"claims need tables that are not in {folder} yet; make them first: {commands}")
    tables = {
        name: [{**line, "table": name} for line in read_table(path_of(folder, name, "csv"))] for name in names
    }
    return [
        _claim(spec, [line for name in spec.tables for line in tables[name]], find(cells, spec.id), draws)
        for spec in specs
    ]


def require_complete(spec: ClaimsSpec, cells: Mapping[str, PublishedCell]) -> None:
    """Check that every number of the paper's prose is listed once, and none of another paper's."""
    id_counts = Counter(claim.id for claim in spec.claims)
    for name in id_counts:
        find(cells, name)
    prose_ids = [
        cell.id for cell in cells.values() if cell.paper == spec.paper and is_prose(cell) and not cell.same_as
    ]
    names_by_verb = {
        "lack": [name for name in prose_ids if not id_counts[name]],
        "repeat": [name for name in id_counts if id_counts[name] > 1],
        "have, though it is of another paper,": [n for n in id_counts if cells[n].paper != spec.paper],
    }
    complaints = [f"the claims {verb} {', '.join(names)}" for verb, names in names_by_verb.items() if names]
    if complaints:
        raise InputError(f"in {spec.experiment} {'; '.join(complaints)}")


def is_prose(cell: PublishedCell) -> bool:
    """Whether a published value comes from a sentence, even one that refers to a figure."""
    return cell.artifact == "text" or ".text." in cell.id


def read_table(path: Path, with_asides: bool = False) -> list[Line]:
    """Lines of a table's CSV file, `aside` values only if wanted; empty if the CSV file is not a table."""
    with csv_reader(path) as reader:
        is_table = {"id", "column", "ours", "reference"} <= set(reader.fieldnames or ())
        return [line for line in reader if is_table and (with_asides or line["column"] != "aside")]


def _claim(
    spec: ClaimSpec, lines: Sequence[Line], cell: PublishedCell, draws: CommittedDraws | None
) -> Claim:
    """The claim with what it takes of its tables' lines."""
    _require(spec, "column", spec.columns, [line["column"] for line in lines])
    _require(spec, "row", spec.rows, [line["id"] for line in lines])
    rows = spec.rows or ("*",)
    selected_lines = [x for x in lines if _fits(x["column"], spec.columns) and _fits(x["id"], rows)]
    figure_lines = [line for line in selected_lines if line["ours"]]
    if len(units := {line["unit"] for line in figure_lines}) > 1:
        raise InputError(f"claim {spec.id!r} takes figures in {', '.join(sorted(map(repr, units)))}")
    if spec.take == "only" and len(selected_lines) > 1:
        raise InputError(
            f"claim {spec.id!r} takes the only figure of {len(selected_lines)}; name its row, or take others"
        )
    unit = units.pop() if units and spec.take not in QUOTIENT_TAKES else cell.unit
    marks = {mark for line in figure_lines for mark in line["marks"].split()} - {"off"}
    marks |= {"fitted"} if figure_lines and cell.determined else set()
    comparison = Comparison(
        cell=cell,
        published=in_unit(cell, unit, f"our figures for it, in {', '.join(spec.tables)},"),
        unit=unit,
        ours=_Figures(spec, figure_lines, draws).figures(),
        n=max((int(line["n"]) for line in figure_lines if line.get("n")), default=None),
        marks=tuple(mark for mark in MARKS if mark in marks),
        column=CLAIM,
        row=cell.id,
        cells=_keys(figure_lines, "cell"),
        baseline=_keys(figure_lines, "baseline"),
        certain=DERIVED if figure_lines and all(_has_reference(line, lines) for line in figure_lines) else "",
    )
    return Claim(spec, comparison, tuple(figure_lines), len(selected_lines) - len(figure_lines))


def _keys(lines: Iterable[Line], field: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for line in lines for key in line.get(field, "").split()))


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _has_reference(line: Line, lines: Sequence[Line]) -> bool:
    """Whether a line, or each figure that it compares, stands beside a published value of the same paper."""
    if line["reference"]:
        return True
    keys = {*line.get("cell", "").split(), *line.get("baseline", "").split()}
    compared_cells = {x["cell"] for x in lines if x["reference"] and x["ours"] and not x.get("baseline")}
    return len(keys) > 1 and keys <= compared_cells


def _require(spec: ClaimSpec, kind: str, patterns: Sequence[str], names: Sequence[str]) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(choice, pattern) for choice in names):
            choices = unknown(kind, pattern, dict.fromkeys(names))
            raise InputError(f"in {', '.join(spec.tables)}, of claim {spec.id!r}, {choices}")


class CommittedDraws:
    """Figures of a folder's tables over draws that they have in common."""

    def __init__(self, results: Results, samples: Samples, spec_of: Callable[[str], TableSpec]) -> None:
        """`samples` have read the cells' details of these results; `spec_of` specifies a table by name."""
        self.results = results
        self.samples = samples
        self.spec_of = spec_of
        self._records_of = cache(self._records)
        self._columns_of = cache(self._columns)

    def prompt_draws(self, lines: Sequence[Line]) -> list[Array | None]:
        """Each line's figure in each draw of all prompts and seeds behind them; None if it is not known."""
        sides = [(self._cells(line, "cell"), self._cells(line, "baseline")) for line in lines]
        samples = self.samples.together([record for side in sides for records in side for record in records])
        return [
            column_draws(self._columns_of(line["table"])[line["column"]], records, baseline, samples)
            if records
            else None
            for line, (records, baseline) in zip(lines, sides, strict=True)
        ]

    def machine_draws(self, lines: Sequence[Line]) -> list[Array | None]:
        """Each line's figure on each drawn machine; None if its table has no band of its cells."""
        addresses = [(line["table"], line["id"], line["column"]) for line in lines]
        return [
            np.array(self._draws_by_figure[address])
            if line.get("band_low") and address in self._draws_by_figure
            else None
            for line, address in zip(lines, addresses, strict=True)
        ]

    @cached_property
    def _draws_by_figure(self) -> Mapping[FigureId, tuple[float, ...]]:
        return read_draws(self.results.root)

    def _cells(self, line: Line, field: str) -> list[Record]:
        """The records of a line's cells, or of those that it is compared with; none if one is not there."""
        keys, records = line.get(field, "").split(), self._records_of(line["table"])
        return [records[key] for key in keys] if all(key in records for key in keys) else []

    def _records(self, table: str) -> dict[str, Record]:
        """A table's records by the beginnings of their keys."""
        members = self.results.members(table)
        return {record.key[:SHORT_LENGTH]: record for record in self.results.records(members)}

    def _columns(self, table: str) -> dict[str, ColumnSpec]:
        return {column.key: column for column in self.spec_of(table).columns}
