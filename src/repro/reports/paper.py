"""A table for a paper: chosen rows and columns as a float with a caption in words.

Owns the choice and what stands below the float; `formats.latex` owns its form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from repro.core.errors import InputError
from repro.core.registry import require_choice, unknown
from repro.reports.formats.latex import to_latex
from repro.reports.formats.layout import (
    UNVARIED_ROWS,
    Grid,
    Heading,
    Page,
    entry_text,
    grid,
    heading,
    interval_line,
    page,
    printed_label,
    with_unit,
)
from repro.reports.tables.table import MARKS, Table

ONE_COLUMN, TWO_COLUMNS = 345.0, 252.0
"""Points of the text of an `article`, and of a column of a page with two."""

TABLE_STYLES = ("float", "full")
IN_EVERY_ROW = "In every row: "


@dataclass(frozen=True)
class PaperTable:
    """What of a table a paper shows.

    Attributes:
        columns: keys of columns, in this order; all if empty.
        rows: ids or printed names of rows, in this order; all if empty.
        intervals: whether values have their intervals and bands.
        width: points that there are.
        style: `float`: the table with a caption in words, its other notes as comments; `full`: all tables and
            notes, as `table.tex` has them.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    intervals: bool = True
    width: float = ONE_COLUMN
    style: str = "float"

    def select(self, table: Table) -> Table:
        """The table with these rows and columns, and intervals if they are wanted.

        A float without named columns leaves out those that are the same in every row, which a footnote says,
        and of a sweep's own table those that its figure does not show.

        Raises:
            InputError: there is no such row or column.
        """
        keys = [column.key for column in table.columns]
        indices = [_index("column", key, keys) for key in self.columns] or [*range(len(keys))]
        ids, names = [row.id for row in table.rows], [row.name for row in table.rows]
        row_indices = [names.index(row) if row in names else _index("row", row, ids) for row in self.rows]
        rows = [table.rows[i] for i in row_indices or range(len(ids))]
        if not self.intervals:
            rows = [
                replace(r, entries=tuple(replace(e, spread=None, band=None) for e in r.entries)) for r in rows
            ]
        table = replace(table, rows=tuple(rows))
        if self.columns or self.style == "full":
            return _with_columns(table, indices)
        texts_by_index = {i: text for i in indices if (text := _in_every_row(table, i))}
        figure_keys = table.figure.columns if table.apart and table.figure else keys
        varied_indices = [i for i in indices if i not in texts_by_index and keys[i] in figure_keys]
        if not varied_indices or len(varied_indices) == len(indices):
            return table
        footnotes = [f"{IN_EVERY_ROW}{', '.join(texts_by_index.values())}."] if texts_by_index else []
        return replace(_with_columns(table, varied_indices), footnotes=(*table.footnotes, *footnotes))

    def figure(self, table: Table) -> Table | None:
        """The table whose figure shows the chosen rows and columns; `None` if these have no figure.

        Raises:
            InputError: there is no such row or column.
        """
        selection = replace(self, style="full").select(table)
        keys, figure = [column.key for column in selection.columns], table.figure
        columns = tuple(key for key in figure.columns if key in keys) if figure else ()
        if not figure or not columns or (figure.kind == "curves" and figure.x not in keys):
            return None
        return replace(selection, figure=replace(figure, columns=columns))

    def latex(self, table: Table, comments: Sequence[str] = ()) -> str:
        """The table in LaTeX, with comments at its end.

        Raises:
            InputError: there is no such row or column.
        """
        selection = self.select(table)
        report = page(selection)
        if self.style == "full":
            return to_latex(report, comments)
        grids = (_pivot(selection) or grid(selection),)
        float_page = Page(selection.experiment, selection.caption, grids, tuple(_below(selection)))
        other_keys = [column.key for column in table.columns if column not in selection.columns]
        omissions = [f"Not shown: {', '.join(other_keys)}; --columns names columns, --style full has all."]
        return to_latex(
            float_page, [*report.notes, *(omissions if other_keys else []), *comments], self.width
        )


def paper_table(
    columns: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    no_intervals: bool = False,
    two_column: bool = False,
    style: str | None = None,
    paper: bool = False,
) -> PaperTable | None:
    """What the command's arguments ask for; `None` without any. `paper` alone asks for all as it is.

    Raises:
        InputError: there is no such style.
    """
    if style is not None:
        require_choice("--style", style, TABLE_STYLES)
    if not (columns or rows or no_intervals or two_column or style or paper):
        return None
    width = TWO_COLUMNS if two_column else ONE_COLUMN
    return PaperTable(
        tuple(columns or ()), tuple(rows or ()), not no_intervals, width, style or TABLE_STYLES[0]
    )


def _pivot(table: Table) -> Grid | None:
    """A sweep's own table over two labels, as methods by phones: each column has a value of the second label.

    `None` of other tables, and if a pair of labels has no row.
    """
    if len(table.apart) != 2:
        return None
    row_label, column_label = sorted(table.apart, key=lambda name: name != "method")
    rows = {(row.labels.get(row_label, ""), row.labels.get(column_label, "")): row for row in table.rows}
    row_labels, column_labels = (dict.fromkeys(pair[i] for pair in rows) for i in (0, 1))
    if len(rows) != len(table.rows) or len(rows) != len(row_labels) * len(column_labels):
        return None
    label_texts = tuple(printed_label(column_label, label) for label in column_labels)
    headings = [Heading(row_label), *(Heading(heading(column), label_texts) for column in table.columns)]
    shared_marks = table.shared_marks
    lines = tuple(
        (
            printed_label(row_label, name),
            *(
                entry_text(rows[name, label].entries[i], column, shared_marks)
                for i, column in enumerate(table.columns)
                for label in column_labels
            ),
        )
        for name in row_labels
    )
    return Grid(tuple(headings), lines, "l" + "r" * len(table.columns) * len(column_labels))


def _index(kind: str, name: str, names: Sequence[str]) -> int:
    if name not in names:
        raise InputError(unknown(kind, name, names))
    return names.index(name)


def _with_columns(table: Table, indices: Sequence[int]) -> Table:
    rows = tuple(replace(row, entries=tuple(row.entries[i] for i in indices)) for row in table.rows)
    return replace(table, rows=rows, columns=tuple(table.columns[i] for i in indices))


def _in_every_row(table: Table, index: int) -> str:
    """A column's heading and value, if it is the same in all of at least `UNVARIED_ROWS` rows; else ""."""
    column = table.columns[index]
    texts = {entry_text(row.entries[index], column, tuple(MARKS)) for row in table.rows}
    if (
        len(table.rows) < UNVARIED_ROWS
        or len(texts) > 1
        or any(row.entries[index].published for row in table.rows)
    ):
        return ""
    return with_unit(f"{column.heading} {texts.pop()}", column.unit)


def _below(table: Table) -> list[str]:
    """How figures were made, what brackets and signs mean: what a reader of the float alone must know."""
    marks = [line for line in table.legend if not line.startswith(MARKS["best"][0])]
    hint = ["Bold: best of its column."] if len(marks) < len(table.legend) else []
    footnotes = [note for note in table.footnotes if note.startswith(IN_EVERY_ROW)]
    return [*footnotes, *([table.how_made] if table.how_made else []), *interval_line(table), *hint, *marks]
