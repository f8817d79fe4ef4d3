"""Claims in a paper's prose, compared with values of our tables.

Owns which table values a claim is compared with, and how. Reads the tables' CSV files; must not know records.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from repro.core.errors import InputError
from repro.core.reading import csv_reader
from repro.core.registry import unknown
from repro.core.typed import typed
from repro.libraries import NDArray, np
from repro.reports.comparison.certain import DERIVED, settled
from repro.reports.comparison.comparison import Compared, Ends, Figure
from repro.reports.comparison.published import Published, in_unit
from repro.reports.files import path_of
from repro.reports.intervals.bootstrap import RESAMPLES
from repro.reports.intervals.bootstrap import ends as ends_of
from repro.reports.reference.reference import PublishedCell, find
from repro.reports.tables.bands import band_range
from repro.reports.tables.table import MARKS

if TYPE_CHECKING:
    Array = NDArray[np.float64]

Line = Mapping[str, str]
"""A line of a table's CSV file; `table` names the table where lines of several are read."""

CLAIM = "claim"
"""Value of the `column` field of a claim in a CSV file."""


QUOTIENTS = ("quotient", "gain_quotient")


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
        if self.take in QUOTIENTS and len(self.rows) != 2:
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
        written = claims_written_out(experiment, section)
        return typed(cls, {"experiment": experiment, **written}, f"table {experiment!r}")


def claims_written_out(experiment: str, section: Mapping[str, Any]) -> dict[str, Any]:
    """A section with one entry for each claim, whole ids and tables, and no groups of rows."""
    given = {name: value for name, value in section.items() if name not in ("rows", "claims")}
    entries, groups = section.get("claims") or (), dict(section.get("rows") or {})
    where = f"table {experiment!r}"
    folder = experiment.rpartition("/")[0]
    paper = str(section.get("paper", folder))
    claims = [claim for entry in entries for claim in written_out(entry, folder, paper, groups, where)]
    return {**given, "claims": claims}


LISTS = ("tables", "columns", "rows")
SHORT = re.compile(r"(abstract|text|fig\w*|table\w*)\.")
"""How an id begins that lacks the paper's name."""


def written_out(
    entry: Any, folder: str, paper: str, groups: Mapping[str, Sequence[str]], where: str
) -> list[dict[str, Any]]:
    """The claims of an entry, which has one `id` or several `ids` that are compared with the same values."""
    if not isinstance(entry, Mapping) or ("id" in entry) == ("ids" in entry):
        raise InputError(f"{where}: {entry!r} must be a claim with `id`, or several with `ids`")
    given = {name: value for name, value in entry.items() if name not in ("id", "ids")}
    for name in LISTS:
        if isinstance(given.get(name), str):
            given[name] = [given[name]]
    given["tables"] = [t if "/" in t or not folder else f"{folder}/{t}" for t in given.get("tables", ())]
    given["rows"] = [row for name in given.get("rows", ()) for row in groups.get(name, [name])]
    names = [entry["id"]] if "id" in entry else entry["ids"]
    return [{"id": f"{paper}.{n}" if SHORT.match(str(n)) else n, **given} for n in names]


class Draws(Protocol):
    """Figures of tables' lines over draws that the lines have in common."""

    def sampled(self, lines: Sequence[Line]) -> list[Array | None]:
        """Each line's figure in each draw of all prompts and seeds behind them; None if it is not known."""

    def banded(self, lines: Sequence[Line]) -> list[Array | None]:
        """Each line's figure on each drawn machine; None if it is not known."""


@dataclass(frozen=True)
class Claim:
    """A claim with our values for it.

    Attributes:
        spec: the claim as configured.
        cell: the published value.
        lines: lines of our tables that have a value for it.
        failed: number of selected lines without a value, because a cell failed or was not run.
        certain: why it cannot miss; "" if it can.
        draws: figures of several lines over common draws; None if they are not at hand.
    """

    spec: ClaimSpec
    cell: PublishedCell
    lines: tuple[Line, ...] = ()
    failed: int = 0
    certain: str = ""
    draws: Draws | None = None

    @cached_property
    def unit(self) -> str:
        """Unit of our values, or of the published one where we have none."""
        if self.spec.take in QUOTIENTS:
            return self.cell.unit
        return self.lines[0]["unit"] if self.lines else self.cell.unit

    @cached_property
    def published(self) -> Published:
        """The published value in the unit of ours."""
        return in_unit(self.cell, self.unit, f"our figures for it, in {', '.join(self.spec.tables)},")

    @cached_property
    def comparison(self) -> Compared:
        """The published value beside ours."""
        counts = [int(line["n"]) for line in self.lines if line.get("n")]
        return Compared(
            cell=self.cell,
            published=self.published,
            unit=self.unit,
            ours=self._figures(),
            n=max(counts, default=None),
            marks=self.marks,
            column=CLAIM,
            row=self.cell.id,
            cells=_keys(self.lines, "cell"),
            baseline=_keys(self.lines, "baseline"),
            certain=self.certain,
        )

    def _figures(self) -> tuple[Figure, ...]:
        """Our value, or the least and the most, with interval and band."""
        values = self._taken([float(line["ours"]) for line in self.lines])
        if values is None:
            return ()
        both = values if self.spec.take == "range" and values[0] != values[1] else values[:1]
        intervals, bands = self._ends(SAMPLED, values), self._ends(BAND, values)
        return tuple(Figure(float(value), intervals[place], bands[place]) for place, value in enumerate(both))

    def _ends(self, fields: tuple[str, str], values: Ends) -> tuple[Ends | None, Ends | None]:
        """The interval or band of `values`, the least and the most of ours.

        That of a single line is its own. Of several the values are taken draw by draw: ends of intervals are
        no draws, and neither their mean nor their extremes is the end of an interval.
        """
        if len(self.lines) == 1:
            low, high = (self.lines[0].get(field) for field in fields)
            own = (float(low), float(high)) if low and high else None
            return own, own
        drawn = self._sampled() if fields == SAMPLED else self._banded()
        taken = None if drawn is None else self._taken(drawn)
        if taken is None:
            return None, None
        if fields == SAMPLED:
            return ends_of(taken[0]), ends_of(taken[1])
        return band_range(taken[0], float(values[0])), band_range(taken[1], float(values[1]))

    def _sampled(self) -> list[Array] | None:
        """The values of all lines over common draws of prompts; None if those of one are not known.

        A line without `n` rests on no prompt and has the same value in each draw.
        """
        if self.draws is None or not any(line.get("n") for line in self.lines):
            return None
        found = self.draws.sampled(self.lines)
        if any(drawn is None and line.get("n") for line, drawn in zip(self.lines, found, strict=True)):
            return None
        return [
            np.full(RESAMPLES, float(line["ours"])) if drawn is None else drawn
            for line, drawn in zip(self.lines, found, strict=True)
        ]

    def _banded(self) -> list[Array] | None:
        """The values of all lines on the same drawn machines; None if those of one are not known."""
        found = [] if self.draws is None else self.draws.banded(self.lines)
        known = [drawn for drawn in found if drawn is not None]
        fewest = min((len(drawn) for drawn in known), default=0)
        return [drawn[:fewest] for drawn in known] if known and len(known) == len(self.lines) else None

    def _taken(self, values: Sequence[Any]) -> tuple[Any, Any] | None:
        """The least and the most that the lines' values reduce to, or those of each draw; None of none."""
        if self.spec.take not in QUOTIENTS:
            return TAKE[self.spec.take](np.array(values)) if values else None
        parts = [
            [value for line, value in zip(self.lines, values, strict=True) if fnmatchcase(line["id"], row)]
            for row in self.spec.rows
        ]
        if not all(parts):
            return None
        less = 1.0 if self.spec.take == "gain_quotient" else 0.0
        above, below = (np.mean(part, axis=0) - less for part in parts)
        if np.min(below) <= 0 <= np.max(below):
            return None  # what is divided by may be 0
        return (above / below,) * 2

    @cached_property
    def ours(self) -> Ends | None:
        """Low and high end of our values, equal for a single value."""
        figures = self.comparison.ours
        return (figures[0].value, figures[-1].value) if figures else None

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks of all our values, without `off`."""
        own = {mark for line in self.lines for mark in line["marks"].split()} - {"off"}
        own |= {"fitted"} if self.lines and self.cell.determined else set()
        return tuple(mark for mark in MARKS if mark in own)

    @property
    def verdict(self) -> str:
        """The verdict with the point verdict beside it if they differ; why there is none."""
        one = self.comparison
        if one.verdict is None:
            return "absent" if self.spec.absent else "no figure"
        return one.verdict if one.verdict == one.point else f"{one.verdict} (our figure alone: {one.point})"


SAMPLED, BAND = ("low", "high"), ("band_low", "band_high")
"""Fields of a line that hold an interval, and a band."""

TAKE: dict[str, Callable[[Array], tuple[Any, Any]]] = {
    "only": lambda values: (values[0],) * 2,
    "min": lambda values: (values.min(0),) * 2,
    "max": lambda values: (values.max(0),) * 2,
    "mean": lambda values: (values.mean(0),) * 2,
    "median": lambda values: (np.median(values, axis=0),) * 2,
    "range": lambda values: (values.min(0), values.max(0)),
}
"""How values [lines], or [lines, draws], are reduced to the least and the most."""


def _keys(lines: Iterable[Line], field: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for line in lines for key in line.get(field, "").split()))


def compare(
    spec: ClaimsSpec, folder: Path, cells: Mapping[str, PublishedCell], draws: Draws | None = None
) -> list[Claim]:
    """Every claim with our values, read from the tables' CSV files in a folder.

    Without `draws` a claim over several figures has neither interval nor band.

    Raises:
        InputError: the claims are not those of the paper; a table does not exist yet, or lacks the row or
            column.
    """
    require_complete(spec, cells)
    claims = claims_of(spec.claims, folder, cells, draws)
    settled_claims = settled([claim.comparison for claim in claims])
    return [
        replace(claim, certain=claim.certain or comparison.certain)
        for claim, comparison in zip(claims, settled_claims, strict=True)
    ]


def claims_of(
    specs: Sequence[ClaimSpec],
    folder: Path,
    cells: Mapping[str, PublishedCell],
    draws: Draws | None = None,
) -> list[Claim]:
    """Claims with our values, whatever else the paper claims; errors as `compare`, but for complete lists."""
    wanted = list(dict.fromkeys(table for spec in specs for table in spec.tables))
    if lacking := [name for name in wanted if not path_of(folder, name, "csv").is_file()]:
        commands = "; ".join(f"experiment={name}" for name in lacking)
        raise InputError(f"claims need tables that are not in {folder} yet; make them first: {commands}")
    tables = {
        name: [{**line, "table": name} for line in read_table(path_of(folder, name, "csv"))]
        for name in wanted
    }
    return [replace(_claim(spec, tables, cells), draws=draws) for spec in specs]


def require_complete(spec: ClaimsSpec, cells: Mapping[str, PublishedCell]) -> None:
    """Check that every number of the paper's prose is listed once, and none of another paper's."""
    count = Counter(claim.id for claim in spec.claims)
    for name in count:
        find(cells, name)
    prose = [
        cell.id for cell in cells.values() if cell.paper == spec.paper and is_prose(cell) and not cell.same_as
    ]
    wrong = {
        "lack": [name for name in prose if not count[name]],
        "repeat": [name for name in count if count[name] > 1],
        "have, though it is of another paper,": [n for n in count if cells[n].paper != spec.paper],
    }
    said = [f"the claims {what} {', '.join(names)}" for what, names in wrong.items() if names]
    if said:
        raise InputError(f"in {spec.experiment} {'; '.join(said)}")


def is_prose(cell: PublishedCell) -> bool:
    """Whether a published value comes from a sentence, even one that refers to a figure."""
    return cell.artifact == "text" or ".text." in cell.id


def read_table(path: Path, asides: bool = False) -> list[Line]:
    """Lines of a table's CSV file, `aside` values only if wanted; empty if the CSV file is not a table."""
    with csv_reader(path) as reader:
        is_table = {"id", "column", "ours", "reference"} <= set(reader.fieldnames or ())
        return [line for line in reader if is_table and (asides or line["column"] != "aside")]


def _claim(
    spec: ClaimSpec, tables: Mapping[str, Sequence[Line]], cells: Mapping[str, PublishedCell]
) -> Claim:
    lines = [line for name in spec.tables for line in tables[name]]
    _require(spec, "column", spec.columns, [line["column"] for line in lines])
    _require(spec, "row", spec.rows, [line["id"] for line in lines])
    rows = spec.rows or ("*",)
    columns = spec.columns
    own = [x for x in lines if _fits(x["column"], columns) and _fits(x["id"], rows)]
    figures = [line for line in own if line["ours"]]
    if len(units := {line["unit"] for line in figures}) > 1:
        raise InputError(f"claim {spec.id!r} takes figures in {', '.join(sorted(map(repr, units)))}")
    if spec.take == "only" and len(own) > 1:
        raise InputError(
            f"claim {spec.id!r} takes the only figure of {len(own)}; name its row, or take others"
        )
    derived = bool(figures) and all(_compared(line, lines) for line in figures)
    certain = DERIVED if derived else ""
    return Claim(spec, find(cells, spec.id), tuple(figures), len(own) - len(figures), certain)


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _compared(line: Line, lines: Sequence[Line]) -> bool:
    """Whether a line, or each figure that it compares, stands beside a published value of the same paper."""
    if line["reference"]:
        return True
    keys = {*line.get("cell", "").split(), *line.get("baseline", "").split()}
    known = {x["cell"] for x in lines if x["reference"] and x["ours"] and not x.get("baseline")}
    return len(keys) > 1 and keys <= known


def _require(spec: ClaimSpec, kind: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    for name in wanted:
        if not any(fnmatchcase(one, name) for one in known):
            choices = unknown(kind, name, dict.fromkeys(known))
            raise InputError(f"in {', '.join(spec.tables)}, of claim {spec.id!r}, {choices}")
