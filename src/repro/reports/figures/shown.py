"""What of a table its picture shows.

Owns the choice of rows and columns and the words on the axes. Must not know how anything is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.reports.formats.layout import UNITS, heading, shared_marks
from repro.reports.spec.spec import ColumnSpec, FigureSpec
from repro.reports.tables.table import MARKS, Entry, Table, TableRow

DRAWN = ("fitted", "off")
"""Marks that the picture shows by colour and place."""


@dataclass(frozen=True)
class Shown:
    """Rows and columns of a picture; `lines` are the rows' entries in these columns, `hidden` the marks that
    stand beside no figure of it."""

    spec: FigureSpec
    columns: Sequence[ColumnSpec]
    rows: Sequence[TableRow]
    lines: Sequence[Sequence[Entry]]
    hidden: Sequence[str]

    @property
    def entries(self) -> list[Entry]:
        """All of them, row by row."""
        return [entry for line in self.lines for entry in line]

    @property
    def heading(self) -> str:
        """Of the axis that all columns share."""
        unit = self.columns[0].unit
        own = heading(self.columns[0]) if len(self.columns) == 1 else UNITS.get(unit, unit)
        return (self.spec.heading or own).rstrip(" ↑↓")


def shown(table: Table, spec: FigureSpec) -> Shown:
    """What a picture of this table shows."""
    columns = [column for key in spec.columns for column in table.columns if column.key == key]
    rows = [row for row in table.rows if row.id not in spec.without]
    lines = [[row.entries[table.columns.index(column)] for column in columns] for row in rows]
    return Shown(spec, columns, rows, lines, (*shared_marks(table), *DRAWN))


def origin(table: Table, entries: Sequence[Entry]) -> str:
    """The line below a picture: reservations of what it shows, date and code."""
    shared = shared_marks(table)
    signs = {mark for entry in entries for mark in entry.marks} - {*shared, *DRAWN}
    words = {mark: MARKS[mark][1].partition(" (")[0] for mark in MARKS}
    reservations = [words[m] for m in shared] + [f"{MARKS[m][0]} {words[m]}" for m in MARKS if m in signs]
    return "; ".join(
        [*reservations, table.date or "no records", f"commit {', '.join(table.commits) or 'none'}"]
    )
