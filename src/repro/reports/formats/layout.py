"""A table as text: formatted values, headings and notes, the same for every format.

Knows no format: escaping and alignment belong to the formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repro.reports.spec.spec import ColumnSpec
from repro.reports.tables.table import MARKS, Aside, Entry, Published, Table, TableRow

ABSENT = "—"
NOT_RUN = "not run"
ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
UNITS = {"x": "×", "percentage_point": "points", "billion_params": "billion parameters", "": ""}


@dataclass(frozen=True)
class Heading:
    """A heading that spans its `parts`, which are printed below it if there are several."""

    words: str
    parts: tuple[str, ...] = ("",)

    @property
    def flat(self) -> tuple[str, ...]:
        """One heading per column: the words over the first column, the parts over the others."""
        return (self.words, *self.parts[1:])


@dataclass(frozen=True)
class Grid:
    """A table as text; `alignment` has one letter per column: l, r, or p for text that may wrap."""

    headings: tuple[Heading, ...]
    lines: tuple[tuple[str, ...], ...]
    alignment: str


@dataclass(frozen=True)
class Page:
    """Tables with a title above and notes below, ready for any format; `experiment` names the files."""

    experiment: str
    title: str
    grids: tuple[Grid, ...]
    notes: tuple[str, ...]


def page(table: Table) -> Page:
    """The table, and a second one of its aside values if there are any."""
    grids = [grid(table), *([aside_grid(table)] if table.aside else [])]
    return Page(table.experiment, table.title, tuple(grids), tuple(notes(table)))


def grid(table: Table) -> Grid:
    """Rows by columns; a column with published values becomes three: ours, paper, ratio."""
    compared = [any(row.entries[i].published for row in table.rows) for i in range(len(table.columns))]
    headings = [Heading(name) for name in table.apart or (table.heading,)]
    names = len(headings)
    for column, wide in zip(table.columns, compared, strict=True):
        headings.append(Heading(heading(column), ("ours", "paper", "ratio") if wide else ("",)))
    shared = shared_marks(table)
    lines = [(*_names(row, table.apart), *_line(row, table.columns, compared, shared)) for row in table.rows]
    alignment = "l" * names + "r" * sum(len(h.parts) for h in headings[names:])
    return Grid(tuple(headings), tuple(lines), alignment)


def _names(row: TableRow, apart: Sequence[str]) -> list[str]:
    return [row.labels.get(name, "") for name in apart] or [_row_name(row)]


def _row_name(row: TableRow) -> str:
    """The row's name; of a row without a cell also that it was not run."""
    return row.name if row.run else f"{row.name} ({NOT_RUN})"


def _line(
    row: TableRow, columns: Sequence[ColumnSpec], compared: Sequence[bool], shared: Sequence[str]
) -> list[str]:
    words: list[str] = []
    for column, wide, entry in zip(columns, compared, row.entries, strict=True):
        words.append(own_words(entry, column, shared))
        if wide:
            words += [published_words(entry.published, column.digits), ratio_words(entry)]
    return words


def heading(column: ColumnSpec) -> str:
    """A column's heading with its unit, and an arrow in the direction of better values."""
    unit = UNITS.get(column.unit, column.unit)
    return column.heading + (f" ({unit})" if unit else "") + ARROWS[column.better]


def own_words(entry: Entry, column: ColumnSpec, shared: Sequence[str] = ()) -> str:
    """Our value with its uncertainty and its marks, except marks shared by the whole table."""
    if entry.failed is not None:
        return f"failed [{entry.failed}]"
    if entry.ours is None:
        return ABSENT
    if isinstance(entry.ours, str):
        return entry.ours + signs(entry.marks, shared)
    words = f"{entry.ours:.{column.digits}f}"
    if isinstance(entry.spread, tuple):
        words += " [{:.{d}f}, {:.{d}f}]".format(*entry.spread, d=column.digits)
    elif entry.spread is not None:
        words += f" ± {entry.spread:.{column.digits}f}"
    return words + signs(entry.marks, shared)


def published_words(published: Published | None, digits: int) -> str:
    """A published value, range or bound, formatted."""
    if published is None:
        return ABSENT
    low, high = (None if v is None else f"{v:.{digits}f}" for v in (published.low, published.high))
    if low is None or high is None:
        return f"≤ {high}" if low is None else f"≥ {low}"
    return low if low == high else f"{low}–{high}"


def ratio_words(entry: Entry) -> str:
    """The ratio of ours to the paper's, formatted."""
    return ABSENT if entry.ratio is None else f"{entry.ratio:.2f}"


def signs(marks: Sequence[str], shared: Sequence[str] = ()) -> str:
    """The signs of the marks that are not shared."""
    own = [MARKS[mark][0] for mark in marks if mark not in shared]
    return f" {' '.join(own)}" if own else ""


def shared_marks(table: Table) -> list[str]:
    """Marks that all our values have; they are stated once, below the table."""
    figures = [set(entry.marks) for row in table.rows for entry in row.entries if entry.ours is not None]
    return [mark for mark in MARKS if len(figures) > 1 and all(mark in marks for marks in figures)]


def notes(table: Table) -> list[str]:
    """Notes below the table, one sentence each: legend, footnotes, errors, source."""
    shared = shared_marks(table)
    used = {mark for row in table.rows for entry in row.entries for mark in entry.marks}
    lines = [f"All our figures: {MARKS[mark][1]}." for mark in shared]
    lines += [f"{MARKS[m][0]} {MARKS[m][1]}." for m in MARKS if m in used and m not in shared]
    lines += [f"[{i}] {text}" for i, text in enumerate(table.footnotes, 1)]
    lines += [*_error_lines(table), *([table.amounts] if table.amounts else [])]
    commits = ", ".join(table.commits) or "none"
    made = ", ".join(f"`{command}`" for command in table.commands or (table.command,))
    lines.append(f"{table.date or 'No records'}, commit {commits}, made by {made}.")
    if any(commit.endswith("+") for commit in table.commits):
        lines.append(
            "A commit with +: code or configuration had uncommitted changes when a cell was computed."
        )
    return lines


def _error_lines(table: Table) -> list[str]:
    errors = table.errors
    if errors is None:
        return []
    cells = "cell" if errors.count == 1 else "cells"
    line = (
        f"Against the paper, over {errors.count} predicted {cells}: median error {errors.median:.1%}, "
        f"worst {errors.worst:.1%} ({errors.worst_at})."
    )
    return [line + (f" {errors.fitted} fitted left out." if errors.fitted else "")]


def aside_grid(table: Table) -> Grid:
    """Published values for another workload, with our nearest value."""
    names = ("published, for another workload", "paper", "nearest of ours", "where", "difference")
    lines = tuple(_aside_line(aside) for aside in table.aside)
    return Grid(tuple(map(Heading, names)), lines, "llllp")


def _aside_line(aside: Aside) -> tuple[str, ...]:
    unit = UNITS.get(aside.unit, aside.unit)
    low, high = (None if v is None else f"{v:.10g}" for v in (aside.published.low, aside.published.high))
    value = (
        f"≤ {high}"
        if low is None
        else f"≥ {low}"
        if high is None
        else low
        if low == high
        else f"{low}–{high}"
    )
    ours = ABSENT
    if aside.ours and aside.column and (aside.ours.ours is not None or aside.ours.failed):
        own_unit = UNITS.get(aside.column.unit, aside.column.unit)
        ours = f"{own_words(aside.ours, aside.column, tuple(MARKS))} {own_unit}".strip()
    return aside.label, f"{value} {unit}".strip(), ours, aside.place, aside.note
