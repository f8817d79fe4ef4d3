"""Which part of a table its figure shows, and the words in and around it.

Owns the choice of rows and columns, the axis labels, and what is said of values. Must not know how anything
is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from repro.reports.figures.palette import Palette
from repro.reports.formats.layout import ABSENT, UNITS, fixed_point, heading
from repro.reports.reference.names import load_names
from repro.reports.spec.spec import ColumnSpec, FigureSpec
from repro.reports.tables.table import MARKS, Entry, Table, TableRow

DRAWN_MARKS = ("fitted", "off", "best")
"""Marks that the figure shows by colour, position and length instead of words."""

MOST_NAMED = 3
"""Rows or columns that are named as having a mark; more are counted."""


@dataclass(frozen=True)
class Content:
    """Rows and columns of a figure.

    `lines` holds each row's entries in these columns, `levels` each row's entry in the column `level` that is
    drawn as a dashed line; empty without one. `x_entries` holds each row's entry in the column that is x.
    """

    spec: FigureSpec
    columns: Sequence[ColumnSpec]
    rows: Sequence[TableRow]
    lines: Sequence[Sequence[Entry]]
    palette: Palette
    levels: Sequence[Entry] = ()
    level: str = ""
    x_entries: Sequence[Entry] = ()

    @property
    def entries(self) -> list[Entry]:
        """All entries, row by row."""
        return [entry for line in self.lines for entry in line]

    @property
    def heading(self) -> str:
        """Label of the axis that all columns share."""
        unit = self.columns[0].unit
        usual_heading = heading(self.columns[0]) if len(self.columns) == 1 else UNITS.get(unit, unit)
        stated_heading = self.spec.heading
        return (UNITS.get(stated_heading, stated_heading) or usual_heading).rstrip(" ↑↓")

    def display(self, label: str, value: str) -> str:
        """What a label's value is called in the figure: as its `names` say, else as in tables."""
        if value in self.spec.names:
            return self.spec.names[value]
        return load_names().find(self.palette.paper, label, value).name


def figure_content(table: Table, spec: FigureSpec, palette: Palette) -> Content:
    """Rows, columns and entries that the figure of this table shows."""
    keys = [key for key in spec.columns if key != spec.level]
    columns = [column for key in keys for column in table.columns if column.key == key]
    rows = [
        replace(row, name=", ".join(spec.names.get(part, part) for part in row.name.split(", ")))
        for row in table.rows
        if row.id not in spec.without and row.has_something
    ]
    lines = [[row.entries[table.columns.index(column)] for column in columns] for row in rows]
    level = next((column for column in table.columns if column.key == spec.level), None)
    levels = [row.entries[table.columns.index(level)] for row in rows] if level else []
    x_indices = [number for number, column in enumerate(table.columns) if column.key == spec.x]
    x_entries = [row.entries[x_indices[0]] for row in rows] if x_indices and spec.kind == "curves" else []
    return Content(spec, columns, rows, lines, palette, levels, level.heading if level else "", x_entries)


def figure_title(table: Table, own_title: str) -> str:
    """The title of a table's figure; below it whether it is emulated, and what computes in whose place."""
    title = artifact_title(table.title, own_title)
    return f"{title}\n{table.origin}" if table.origin else title


def artifact_title(title: str, text: str) -> str:
    """A figure's own title after the artifact that the table's title names before its colon."""
    artifact, colon, _ = title.partition(": ")
    return f"{artifact}: {text}" if text and colon and not text.startswith(artifact) else text or title


def value_text(entry: Entry, column: ColumnSpec) -> str:
    """Our value as it stands in a figure: without interval and marks, which are drawn or said below."""
    if entry.failed is not None:
        return "failed"
    if entry.ours is None:
        return ABSENT
    if isinstance(entry.ours, str):
        return entry.ours
    return fixed_point(entry.ours, column.digits) if entry.ours else "0"


def ends_of(entry: Entry) -> tuple[float, float] | None:
    """The low and high end of our value's interval, or one standard error below and above it."""
    if entry.spread is None or entry.number is None:
        return None
    if isinstance(entry.spread, tuple):
        return entry.spread
    return entry.number - entry.spread, entry.number + entry.spread


def origin(table: Table, content: Content | None = None) -> str:
    """The line below a figure: how it was made, marks shown, what error bars are, date and commits."""
    sentences = list(_mark_sentences(content) if content else (_meaning(mark) for mark in table.shared_marks))
    entries = content.entries if content else []
    sentences += _error_bars(entries)
    sentences += [table.date or "no records", f"commit {', '.join(table.commits) or 'none'}"]
    return "; ".join(filter(None, (table.how_made.rstrip("."), *sentences)))


def _error_bars(entries: Sequence[Entry]) -> list[str]:
    kinds = {type(entry.spread) for entry in entries if entry.spread is not None}
    names = {tuple: "95% interval", float: "one standard error"}
    return [f"error bars: {' or '.join(names[kind] for kind in names if kind in kinds)}"] if kinds else []


def _meaning(mark: str) -> str:
    return MARKS[mark][1].partition(" (")[0]


def _mark_sentences(content: Content) -> Iterator[str]:
    """What holds for all values shown, and what only for some, with their rows, columns or number."""
    values = [
        (row.name, column.heading, entry)
        for row, line in zip(content.rows, content.lines, strict=True)
        for column, entry in zip(content.columns, line, strict=True)
        if entry.ours is not None
    ]
    for mark in MARKS:
        flags = [mark in entry.marks for _, _, entry in values]
        if mark in DRAWN_MARKS or not any(flags):
            continue
        if all(flags):
            yield _meaning(mark)
            continue
        names = _names([row for row, _, _ in values], flags) or _names([col for _, col, _ in values], flags)
        yield f"{names or f'{sum(flags)} of {len(flags)} values'}: {_meaning(mark)}"


def _names(names: Sequence[str], have_mark: Sequence[bool]) -> str:
    """The few rows or columns with the mark, or those without it, if it is on whole ones; else ""."""
    with_mark = {name for name, has_mark in zip(names, have_mark, strict=True) if has_mark}
    unmarked = {name for name, has_mark in zip(names, have_mark, strict=True) if not has_mark}
    if with_mark & unmarked:
        return ""
    side, lead_in = (with_mark, "") if len(with_mark) <= len(unmarked) else (unmarked, "all but ")
    return (
        lead_in + ", ".join(name for name in dict.fromkeys(names) if name in side)
        if len(side) <= MOST_NAMED
        else ""
    )
