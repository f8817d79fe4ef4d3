"""Marks the best value of each column.

Must not know records. Columns without a better direction, and rows that failed, have no best value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from repro.reports.intervals.rounds import narrow
from repro.reports.spec.spec import ColumnSpec
from repro.reports.tables.table import Entry, Table


def with_best(table: Table) -> Table:
    """The table with the mark `best` on the best values of each column, unless all of them are equal."""
    columns = [[row.entries[i] for row in table.rows] for i in range(len(table.columns))]
    marked = [_column(column, entries) for column, entries in zip(table.columns, columns, strict=True)]
    rows = [replace(row, entries=tuple(own[i] for own in marked)) for i, row in enumerate(table.rows)]
    return replace(table, rows=tuple(rows))


def _column(column: ColumnSpec, entries: Sequence[Entry]) -> list[Entry]:
    best = _best(column, entries)
    return [_marked(entry, best, column.digits) for entry in entries]


def _best(column: ColumnSpec, entries: Sequence[Entry]) -> float | None:
    """The column's best value as it is shown; `None` if there is no direction or difference, or a tie without
    intervals."""
    shown = {round(e.ours, column.digits) for e in entries if isinstance(e.ours, (int, float))}
    if len(shown) < 2 or not column.better:
        return None
    best = max(shown) if column.better == "higher" else min(shown)
    tied = [e for e in entries if isinstance(e.ours, (int, float)) and round(e.ours, column.digits) == best]
    return (
        best
        if len(tied) == 1 or all(entry.interval and not narrow(entry.interval) for entry in tied)
        else None
    )


def _marked(entry: Entry, best: float | None, digits: int) -> Entry:
    if best is None or not isinstance(entry.ours, (int, float)) or round(entry.ours, digits) != best:
        return entry
    return replace(entry, marks=(*entry.marks, "best"))
