"""Tables on the terminal, in Markdown and in CSV.

Owns these three formats. `layout` owns the text of cells and notes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from repro.core.digits import csv_text
from repro.reports.comparison.comparison import Published
from repro.reports.formats.layout import MOST_COLUMNS, NOT_RUN, Grid, Heading, Page
from repro.reports.tables.table import Entry, Table

CSV_HEADER = (
    *("row", "id", "column", "unit", "better", "ours", "low", "high", "n", "band_low", "band_high"),
    *(
        "published_low",
        "published_high",
        "ratio",
        "marks",
        "failed",
        "reference",
        "verdict",
        "point",
        "certain",
    ),
    *("note", "commit", "date", "cell", "baseline"),
)


MOST_ROWS = 200
"""Rows that a terminal gets of a table."""

TEXT_WIDTH = 40
"""Characters of a line of a column whose text may wrap, on the terminal."""


def to_screen(page: Page) -> RenderableType:
    """The tables with their notes for a terminal, without the BibTeX.

    A table that is wider than the terminal is printed in several parts, each with the names of the rows; of a
    long one the first `MOST_ROWS` rows.
    """
    return _Screen(page)


@dataclass(frozen=True)
class _Screen:
    page: Page

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide_options = options.update_width(sys.maxsize)
        yield Text(self.page.title, style="bold")
        for grid in self.page.grids:
            top_grid = replace(grid, lines=grid.lines[:MOST_ROWS])
            part_grids = top_grid.divide(
                lambda part: console.measure(_rich(part), options=wide_options).maximum <= options.max_width
            )
            yield from map(_rich, part_grids)
            if (hidden_rows := len(grid.lines) - MOST_ROWS) > 0:
                yield Text(f"and {hidden_rows} more rows, in the files", style="dim")
        yield from (Text(line, style="dim") for line in self.page.notes)


def _rich(grid: Grid) -> RichTable:
    """The grid as a table; its headings are broken into lines that are not wider than its cells."""
    table = RichTable(box=box.SIMPLE_HEAD)
    names = [name for heading in grid.headings for name in heading.flat]
    for i, (name, letter) in enumerate(zip(names, grid.alignment, strict=True)):
        width = max((len(line[i]) for line in grid.lines), default=0)
        table.add_column(
            "\n".join(Heading(name).wrap(width)),
            justify="right" if letter == "r" else "left",
            vertical="bottom",
            no_wrap=letter == "r",
            max_width=TEXT_WIDTH if letter == "p" else None,
        )
    for line in grid.lines:
        table.add_row(*map(Text, line))
    return table


def to_markdown(page: Page, bibtex: Sequence[str]) -> str:
    """GitHub Markdown: tables of at most `MOST_COLUMNS` columns, notes, BibTeX, how to make other formats."""
    grids = [part for grid in page.grids for part in grid.divide(_fits)]
    paragraphs = [f"## {_plain_text(page.title)}", *map(_pipes, grids)]
    paragraphs += ["\n".join(f"- {_plain_text(line)}" for line in page.notes)]
    paragraphs += ["```bibtex\n" + "\n\n".join(bibtex) + "\n```"]
    if page.made_by_table:
        command = f"repro table {page.experiment} --results FOLDER --format tex pdf bib --out paper"
        paragraphs += [f"LaTeX, PDF and BibTeX: `{command}`, with the folder of results that this lies in."]
    return "\n\n".join(paragraphs) + "\n"


def _fits(grid: Grid) -> bool:
    return len(grid.alignment) <= MOST_COLUMNS


def _pipes(grid: Grid) -> str:
    from tabulate import DataRow, TableFormat, tabulate

    rule = " | ".join("---:" if letter == "r" else "---" for letter in grid.alignment)
    row = DataRow("|", "|", "|")
    # tabulate's own formats make columns equally wide: a new value would change every line.
    pipes = TableFormat(
        None, lambda *_: f"| {rule} |", None, None, row, row, padding=1, with_header_hide=None
    )
    names, *lines = (
        [_plain_text(word) for word in line]
        for line in ([name for heading in grid.headings for name in heading.flat], *grid.lines)
    )
    text: str = tabulate(lines, names, pipes, disable_numparse=True, stralign=None)
    return text


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """GitHub Markdown of plain words and numbers, without a line's end."""
    lines = [" | ".join(str(cell).replace("|", "/") for cell in row) for row in (headings, *rows)]
    head, *body = [f"| {line} |" for line in lines]
    return "\n".join([head, f"|{'---|' * len(headings)}", *body])


CODE_SPAN = re.compile(r"((?<!`)`[^`]+`(?!`))")
LINK_PATTERN = re.compile(r"\][(\[:]|&#?\w+;")
"""What makes brackets a link or a link's place; a character may also be written by its number."""


def _plain_text(text: str) -> str:
    """Text of one line that Markdown shows as it is: no HTML, link, picture or emphasis comes of it.

    Code between backticks stays code, in which only the table's bar is escaped.
    """
    line = " ".join(text.splitlines())
    # Brackets alone are an interval; what follows makes them a link, or the place that links lead to.
    special_characters = "\\|*<>[]!&" if LINK_PATTERN.search(line) else "\\|*<>"
    spans = CODE_SPAN.split(line)  # text, code, text, code, ...
    escaped = [_escape(part, "|" if i % 2 else special_characters) for i, part in enumerate(spans)]
    return "".join(escaped)


def _escape(text: str, special_characters: str) -> str:
    return "".join(f"\\{character}" if character in special_characters else character for character in text)


def to_csv(table: Table) -> str:
    """CSV with one line per value in ten digits, with published value, marks and source; aside values last.

    `better` is the better direction, "" if there is none. The last columns are the labels of the rows and of
    the columns' cells, each by its name, with `_label` behind one that another column has. `cell` and
    `baseline` are beginnings of the keys of the cells that a value is made from and compared with; `failed`
    says so, or that the row was not run.
    """
    labels = dict.fromkeys(name for row in table.rows for name in row.labels)
    labels |= dict.fromkeys(name for column in table.columns for name in column.where)
    label_columns = [f"{name}_label" if name in CSV_HEADER else name for name in labels]
    lines: list[Sequence[object]] = [[*CSV_HEADER, *label_columns]]
    origin = (" ".join(table.commits), table.date)
    for row in table.rows:
        for column, entry in zip(table.columns, row.entries, strict=True):
            lead = [row.name, row.id, column.key, column.unit, column.better]
            keys = " ".join(entry.cells), " ".join(entry.baseline)
            entry_labels = {**row.labels, **column.where}
            fields = [*_csv_entry(entry, row.run), "", *origin, *keys]
            lines.append([*lead, *fields, *(entry_labels.get(name, "") for name in labels)])
    for aside in table.aside:
        ours = aside.ours or Entry()
        entry = replace(ours, published=aside.published, comparison=None)
        keys = " ".join(ours.cells), " ".join(ours.baseline)
        spec = aside.column if aside.ours else None
        lead = [aside.label, "", "aside", *((spec.unit, spec.better) if spec else (aside.unit, ""))]
        lines.append([*lead, *_csv_entry(entry), aside.note, *origin, *keys, *("" for _ in labels)])
    return csv_text(lines)


def _csv_entry(entry: Entry, run: bool = True) -> list[object]:
    published = entry.published or Published("", None, None)
    low, high = entry.interval or (None, None)
    band = entry.band or (None, None)
    failure = "failed" if entry.failed is not None else "" if run else NOT_RUN
    marks, comparison = " ".join(entry.marks), entry.comparison
    verdicts = (comparison.verdict, comparison.point, comparison.certain) if comparison else (None, None, "")
    ends = (published.low, published.high, entry.ratio)
    return [entry.ours, low, high, entry.n, *band, *ends, marks, failure, published.id, *verdicts]
