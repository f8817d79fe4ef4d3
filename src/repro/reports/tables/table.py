"""A table: our values beside the published ones.

Owns a table's dataclasses. Knows neither how it is built (`build`) nor how it looks (`render`, `figure`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from repro.records.record import Scalar, Spread
from repro.reports.spec.spec import ColumnSpec, FigureSpec

MARKS = {
    "proxy": ("†", "computed by a smaller proxy's weights (acceptance and text are the proxy's own)"),
    "costs_only": ("c", "costs only, no weights computed"),
    "dequantized": ("d", "computed from a checkpoint that came quantized"),
    "matched": ("§", "draft-target agreement of the proxy pair matched to the published one"),
    "fitted": ("‡", "used in a fit or determined by one, so no prediction; left out of the error figure"),
    "older": ("o", "made by an older version of a component; run the table's command to renew it"),
    "wall": ("w", "wall clock of a real device, not emulated"),
    "off": ("!", "differs from the published value by more than the column's tolerance"),
    "best": ("★", "best of its column"),
}
"""Marks of a value: its sign, and the legend's text."""


@dataclass(frozen=True)
class Published:
    """A published value in the column's unit; one end is `None` for "up to" and "more than"."""

    id: str
    low: float | None
    high: float | None

    @property
    def ends(self) -> list[float]:
        """The ends that are given."""
        return [value for value in (self.low, self.high) if value is not None]

    def ratio(self, ours: Scalar) -> float | None:
        """Ours over the published value: over the nearer end of a range, 1 inside it; None for a bound."""
        if isinstance(ours, str) or ours is None or not self.low or not self.high:
            return None
        return ours / min(max(ours, self.low), self.high)

    def difference(self, ours: Scalar) -> float | None:
        """Ours less the published value: less the nearer end of a range, 0 inside it; None for a bound."""
        if isinstance(ours, str) or ours is None or self.low is None or self.high is None:
            return None
        return ours - min(max(ours, self.low), self.high)


@dataclass(frozen=True)
class Entry:
    """One table entry, at a row and a column.

    `marks` are keys of `MARKS`; `failed` is the number of the footnote with the traceback's last line.
    `cells` are beginnings of the keys of the cells that it is made from, `baseline` of those that it is
    compared with; a table's `cells.jsonl` has their records.
    """

    ours: Scalar = None
    spread: Spread | None = None
    published: Published | None = None
    ratio: float | None = None
    marks: tuple[str, ...] = ()
    failed: int | None = None
    cells: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()

    @property
    def predicted(self) -> bool:
        """Whether it counts in the error statistics: compared with a published value and not fitted."""
        return self.ratio is not None and "fitted" not in self.marks


@dataclass(frozen=True)
class TableRow:
    """One row; `id` joins its labels in one string, `labels` holds them by name. `run`: it has a cell."""

    id: str
    name: str
    entries: tuple[Entry, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    run: bool = True


@dataclass(frozen=True)
class Aside:
    """A published value that we do not reproduce; `ours` is our nearest value."""

    label: str
    published: Published
    unit: str
    place: str
    note: str
    ours: Entry | None
    column: ColumnSpec | None


@dataclass(frozen=True)
class Errors:
    """Statistics of |ratio - 1| over the predicted cells; `fitted` counts the compared cells left out."""

    count: int
    median: float
    worst: float
    worst_at: str
    fitted: int


@dataclass(frozen=True)
class Table:
    """Rows and columns with titles, notes and sources; the same records give an equal table.

    `stand_ins` says in a phrase what stands in for the paper's models, `amounts` in a sentence how many
    cells, prompts and tokens there are. `commands` made its cells; the first recreates the table.
    `apart` names the labels of a row that have a column each; without any, a row's name is one column.
    """

    experiment: str
    title: str
    heading: str
    columns: tuple[ColumnSpec, ...]
    rows: tuple[TableRow, ...]
    aside: tuple[Aside, ...]
    footnotes: tuple[str, ...]
    errors: Errors | None
    commits: tuple[str, ...]
    date: str
    papers: tuple[str, ...]
    figure: FigureSpec | None
    stand_ins: str = ""
    amounts: str = ""
    commands: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        """The title with what stands in for the paper's models."""
        return f"{self.title} ({self.stand_ins})" if self.stand_ins else self.title

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
