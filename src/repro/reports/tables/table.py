"""A table: our values beside the published ones.

Owns a table's dataclasses. Knows neither how it is built (`build`) nor how it looks (`render`, `figure`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from repro.records.record import Scalar, Spread
from repro.reports.comparison.comparison import Comparison, Ends, Published
from repro.reports.intervals.rounds import narrow
from repro.reports.spec.spec import ColumnSpec, FigureSpec

MARKS = {
    "proxy": ("†", "computed by a smaller proxy's weights (acceptance and text are the proxy's own)"),
    "costs_only": ("c", "costs only, no weights computed"),
    "dequantized": ("d", "computed from a checkpoint that came quantized"),
    "matched": ("§", "draft-target agreement of the proxy pair matched to the published one"),
    "fitted": ("‡", "used in a fit or determined by one, so no prediction; left out of the error figure"),
    "extrapolated": (
        "x",
        "passes or layers outside of the ranges that the engine's numbers hold for (docs/emulator.md has the "
        "errors on chips left out)",
    ),
    "interpolated": (
        "x",
        "passes over numbers of rows that were not measured, between two far apart: their time is "
        "interpolated, and a band has what either of the two takes",
    ),
    "older": ("o", "made by an older version of a component; run the table's command to renew it"),
    "wall": ("w", "wall clock of a real device, not emulated"),
    "off": ("!", "differs from the published value by more than the column's tolerance"),
    "best": ("★", "best of its column"),
}
"""Marks of a value: its sign, and the legend's text."""


def legend(marks: Iterable[str]) -> list[str]:
    """What the signs of these marks mean, a sentence each."""
    used_marks = {*marks}
    return [f"{sign} {text}." for mark, (sign, text) in MARKS.items() if mark in used_marks]


@dataclass(frozen=True)
class Entry:
    """One table entry, at a row and a column.

    `spread` is a 95% interval over prompts, rows or requests, or a standard error; `n` counts the distinct
    ones. `band` is the range over the assumed numbers of the device and its engine.
    `marks` are keys of `MARKS`; `failed` is the number of the footnote with the traceback's last line.
    `cells` are beginnings of the keys of the cells that it is made from, `baseline` of those that it is
    compared with.
    """

    ours: Scalar = None
    spread: Spread | None = None
    n: int | None = None
    band: Ends | None = None
    published: Published | None = None
    comparison: Comparison | None = None
    marks: tuple[str, ...] = ()
    failed: int | None = None
    cells: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()

    @property
    def number(self) -> float | None:
        """Our value, if it is a number."""
        return float(self.ours) if isinstance(self.ours, (int, float)) else None

    @property
    def ratio(self) -> float | None:
        """Ours over the nearest published number; None without both, for a bound and a published zero."""
        if self.comparison is None or self.number is None:
            return None
        return self.comparison.published.ratio(self.number)

    @property
    def interval(self) -> Ends | None:
        """The uncertainty as a 95% interval; of a standard error 1.96 of it to both sides."""
        if isinstance(self.spread, tuple) or self.spread is None or self.number is None:
            return self.spread if isinstance(self.spread, tuple) else None
        return self.number - 1.96 * self.spread, self.number + 1.96 * self.spread


@dataclass(frozen=True)
class TableRow:
    """One row; `id` joins its labels in one string, `labels` holds them by name. `run`: it has a cell.

    `refused` is the number of the footnote that says why it has none.
    """

    id: str
    name: str
    entries: tuple[Entry, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    run: bool = True
    refused: int | None = None

    @property
    def has_something(self) -> bool:
        """Whether there is anything to compare: a cell of ours, or a published value."""
        return self.run or any(entry.published for entry in self.entries)

    def is_point(self, panel: str) -> bool:
        """Whether the row is a point of curves: all its labels but that of the panel are numbers."""
        return all(is_number(label) for name, label in self.labels.items() if name != panel)


def is_number(label: str) -> bool:
    """Whether a label is a number."""
    try:
        float(label)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Aside:
    """A published value that we do not reproduce; `ours` is our nearest value."""

    label: str
    published: Published
    unit: str
    artifact: str
    note: str
    ours: Entry | None
    column: ColumnSpec | None


@dataclass(frozen=True)
class Table:
    """Rows and columns with titles, notes and sources; the same records give an equal table.

    `figure_kinds` says in a word or two whether figures are emulated or measured, `stand_ins` in a phrase
    what stands in for the paper's models, `how_made` in a line on which machines, how well known, and what
    computed. `amounts` says in a sentence how many cells, prompts and tokens there are. `commands` made its
    cells; the first recreates the table. `apart` names the labels of a row that have a column each; without
    any, a row's name is one column. `draw_count` counts the drawn machines of its bands.
    """

    experiment: str
    title: str
    heading: str
    columns: tuple[ColumnSpec, ...]
    rows: tuple[TableRow, ...]
    aside: tuple[Aside, ...]
    footnotes: tuple[str, ...]
    commits: tuple[str, ...]
    date: str
    papers: tuple[str, ...]
    figure: FigureSpec | None
    figure_kinds: str = ""
    stand_ins: str = ""
    how_made: str = ""
    amounts: str = ""
    commands: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    draw_count: int = 0

    @property
    def entries(self) -> list[Entry]:
        """All entries, row by row."""
        return [entry for row in self.rows for entry in row.entries]

    @property
    def comparisons(self) -> list[Comparison]:
        """All comparisons with published values, in the order of rows."""
        return [entry.comparison for entry in self.entries if entry.comparison]

    @property
    def shared_marks(self) -> list[str]:
        """Marks that all our values have; they are stated once, below the table."""
        mark_lists = [entry.marks for entry in self.entries if entry.ours is not None]
        return [mark for mark in MARKS if len(mark_lists) > 1 and all(mark in marks for marks in mark_lists)]

    @property
    def legend(self) -> list[str]:
        """What the signs of marks mean that only some values have."""
        return legend(mark for entry in self.entries for mark in entry.marks if mark not in self.shared_marks)

    @property
    def caption(self) -> str:
        """The title with whether its figures are emulated, and what stands in for the paper's models."""
        return f"{self.title} ({self.origin})" if self.origin else self.title

    @property
    def origin(self) -> str:
        """Whether the figures are emulated, and what stands in for the paper's models."""
        return "; ".join(filter(None, (self.figure_kinds, self.stand_ins)))

    @property
    def command(self) -> str:
        """Command that recreates the table; cells that have a record are not computed again."""
        return self.commands[0] if self.commands else f"python -m repro experiment={self.experiment}"

    def entry(self, row: str, column: str) -> Entry:
        """The entry at a row's id and a column's key.

        Raises:
            KeyError: there is no such row or column.
        """
        entries = next((r.entries for r in self.rows if r.id == row), None)
        keys = [c.key for c in self.columns]
        if entries is None or column not in keys:
            raise KeyError((row, column))
        return entries[keys.index(column)]


def with_best(table: Table) -> Table:
    """The table with the mark `best` on the best values of each column, as they are shown.

    A column without a direction or a difference has none, nor has a tie without intervals.
    """
    columns = [
        _with_best(column, [row.entries[i] for row in table.rows]) for i, column in enumerate(table.columns)
    ]
    lines = zip(table.rows, zip(*columns, strict=True), strict=True)
    return replace(table, rows=tuple(replace(row, entries=entries) for row, entries in lines))


def _with_best(column: ColumnSpec, entries: Sequence[Entry]) -> Sequence[Entry]:
    round_values = [None if entry.number is None else round(entry.number, column.digits) for entry in entries]
    values = {value for value in round_values if value is not None}
    if len(values) < 2 or not column.better:
        return entries
    best_value = max(values) if column.better == "higher" else min(values)
    indices = [i for i, value in enumerate(round_values) if value == best_value]
    intervals = [entries[i].interval for i in indices]
    if len(indices) > 1 and not all(interval and not narrow(interval) for interval in intervals):
        return entries
    return [replace(e, marks=(*e.marks, "best")) if i in indices else e for i, e in enumerate(entries)]
