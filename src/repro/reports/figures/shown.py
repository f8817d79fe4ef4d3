"""Which part of a table its figure shows.

Owns the choice of rows and columns and the axis labels. Must not know how anything is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.reports.formats.layout import UNITS, heading, shared_marks
from repro.reports.spec.spec import ColumnSpec, FigureSpec
from repro.reports.tables.table import MARKS, Entry, Table, TableRow

DRAWN = ("fitted", "off", "best")
"""Marks that the figure shows by colour, position and length instead of a sign."""


@dataclass(frozen=True)
class Shown:
    """Rows and columns of a figure.

    `lines` holds each row's entries in these columns, `hidden` the marks that are not printed beside values.
    """

    spec: FigureSpec
    columns: Sequence[ColumnSpec]
    rows: Sequence[TableRow]
    lines: Sequence[Sequence[Entry]]
    hidden: Sequence[str]

    @property
    def entries(self) -> list[Entry]:
        """All entries, row by row."""
        return [entry for line in self.lines for entry in line]

    @property
    def heading(self) -> str:
        """Label of the axis that all columns share."""
        unit = self.columns[0].unit
        own = heading(self.columns[0]) if len(self.columns) == 1 else UNITS.get(unit, unit)
        return (self.spec.heading or own).rstrip(" ↑↓")


def shown(table: Table, spec: FigureSpec) -> Shown:
    """Rows, columns and entries that the figure of this table shows."""
    columns = [column for key in spec.columns for column in table.columns if column.key == key]
    rows = [row for row in table.rows if row.id not in spec.without]
    lines = [[row.entries[table.columns.index(column)] for column in columns] for row in rows]
    return Shown(spec, columns, rows, lines, (*shared_marks(table), *DRAWN))


def origin(table: Table, entries: Sequence[Entry]) -> str:
    """The line below a figure: marks of the values shown, date and commits."""
    shared = shared_marks(table)
    signs = {mark for entry in entries for mark in entry.marks} - {*shared, *DRAWN}
    words = {mark: MARKS[mark][1].partition(" (")[0] for mark in MARKS}
    reservations = [words[m] for m in shared] + [f"{MARKS[m][0]} {words[m]}" for m in MARKS if m in signs]
    return "; ".join(
        [*reservations, table.date or "no records", f"commit {', '.join(table.commits) or 'none'}"]
    )
