"""Tables on the terminal, in Markdown and in CSV.

Owns these three formats. `layout` owns the text of cells and notes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import fill
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from repro.core.digits import csv_text
from repro.reports.comparison.published import Published
from repro.reports.formats.layout import NOT_RUN, Grid, Page
from repro.reports.formats.parts import MOST, divided
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

GAP = 3
"""Characters between two columns on the terminal."""


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
        yield Text(self.page.title, style="bold")
        for whole in self.page.grids:
            words = replace(whole, lines=whole.lines[:MOST_ROWS])
            yield from (_rich(part, options.max_width) for part in _parts(words, options.max_width))
            if (more := len(whole.lines) - MOST_ROWS) > 0:
                yield Text(f"and {more} more rows, in the files", style="dim")
        yield from (Text(line, style="dim") for line in self.page.notes)


def _rich(words: Grid, width: int) -> RichTable:
    """The grid as a table; its headings are broken into lines only if it is too wide otherwise."""
    shown = RichTable(box=box.SIMPLE_HEAD)
    widths = _widths(words, broken=sum(_widths(words, broken=False)) >= width)
    for name, letter, wide in zip(_names(words), words.alignment, widths, strict=True):
        side: Literal["left", "right"] = "right" if letter == "r" else "left"
        first, *unit = name.split("\n")
        heading = "\n".join([fill(first, wide - GAP, break_long_words=False), *unit])
        shown.add_column(heading, justify=side, vertical="bottom", no_wrap=letter == "r")
    for line in words.lines:
        shown.add_row(*map(Text, line))
    return shown


def _parts(words: Grid, width: int) -> list[Grid]:
    """The grid in parts of at most `width` characters."""
    wide = _widths(words, broken=True)
    return divided(words, lambda columns: sum(wide[i] for i in columns) < width)  # the left edge is one more


def _widths(words: Grid, broken: bool) -> list[int]:
    """Characters that each column needs, with the `GAP` beside it; headings whole, or broken into lines."""
    lines = [list(line) for line in words.lines]
    columns = [[line[i] for line in lines] for i in range(len(words.alignment))]
    names = [_least(n) if broken else max(map(len, n.split("\n"))) for n in _names(words)]
    return [max(name, *map(len, own), 0) + GAP for name, own in zip(names, columns, strict=True)]


def _names(words: Grid) -> list[str]:
    """A name for each column, the unit on a line of its own."""
    return [name.replace(" (", "\n(", 1) for h in words.headings for name in h.flat]


def _least(name: str) -> int:
    """Characters that a column needs for its name: those of the longest word, or of the line of the unit."""
    first, _, unit = name.partition("\n")
    return max(len(unit), *map(len, first.split() or [""]))


def to_markdown(page: Page, bibtex: Sequence[str]) -> str:
    """GitHub Markdown: tables of at most `MOST` columns, notes, BibTeX."""
    grids = [part for words in page.grids for part in divided(words, lambda columns: len(columns) <= MOST)]
    parts = [f"## {_markdown(page.title)}", *map(_pipes, grids)]
    parts += ["\n".join(f"- {_markdown(line)}" for line in page.notes)]
    parts += ["```bibtex\n" + "\n\n".join(bibtex) + "\n```"]
    return "\n\n".join(parts) + "\n"


def _pipes(words: Grid) -> str:
    names = [name for h in words.headings for name in h.flat]
    rule = ["---:" if letter == "r" else "---" for letter in words.alignment]
    lines = [names, rule, *words.lines]
    escaped = [[_markdown(word) for word in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


CODE_SPAN = re.compile(r"((?<!`)`[^`]+`(?!`))")
LINK = re.compile(r"\][(\[:]|&#?\w+;")
"""What makes brackets a link or a link's place; a character may also be written by its number."""


def _markdown(text: str) -> str:
    """Text of one line that Markdown shows as it is: no HTML, link, picture or emphasis comes of it.

    Code between backticks stays code, in which only the table's bar is escaped.
    """
    line = " ".join(text.splitlines())
    # Brackets alone are an interval; what follows makes them a link, or the place that links lead to.
    special = "\\|*<>[]!&" if LINK.search(line) else "\\|*<>"
    parts = CODE_SPAN.split(line)  # text, code, text, code, ...
    escaped = [_escaped(part, "|" if i % 2 else special) for i, part in enumerate(parts)]
    return "".join(escaped)


def _escaped(text: str, special: str) -> str:
    return "".join(f"\\{c}" if c in special else c for c in text)


def to_csv(table: Table) -> str:
    """CSV with one line per value in ten digits, with published value, marks and source; aside values last.

    `better` is the better direction, "" if there is none. The last columns are the labels of the rows and of
    the columns' cells, each by its name, with `_label` behind one that another column has. `cell` and
    `baseline` are beginnings of the keys of the cells that a value is made from and compared with; `failed`
    says so, or that the row was not run.
    """
    labels = dict.fromkeys(name for row in table.rows for name in row.labels)
    labels |= dict.fromkeys(name for column in table.columns for name in column.where)
    named = [f"{name}_label" if name in CSV_HEADER else name for name in labels]
    lines: list[Sequence[object]] = [[*CSV_HEADER, *named]]
    origin = (" ".join(table.commits), table.date)
    for row in table.rows:
        for column, entry in zip(table.columns, row.entries, strict=True):
            about = [row.name, row.id, column.key, column.unit, column.better]
            cells = " ".join(entry.cells), " ".join(entry.baseline)
            own = {**row.labels, **column.where}
            found = [*_csv_entry(entry, row.run), "", *origin, *cells]
            lines.append([*about, *found, *(own.get(name, "") for name in labels)])
    for aside in table.aside:
        ours = aside.ours or Entry()
        entry = replace(ours, published=aside.published, comparison=None, ratio=None)
        cells = " ".join(ours.cells), " ".join(ours.baseline)
        of_ours = aside.column if aside.ours else None
        about = [aside.label, "", "aside", *((of_ours.unit, of_ours.better) if of_ours else (aside.unit, ""))]
        lines.append([*about, *_csv_entry(entry), aside.note, *origin, *cells, *("" for _ in labels)])
    return csv_text(lines)


def _csv_entry(entry: Entry, run: bool = True) -> list[object]:
    published = entry.published or Published("", None, None)
    low, high = entry.interval or (None, None)
    band = entry.band or (None, None)
    failed = "failed" if entry.failed is not None else "" if run else NOT_RUN
    marks, one = " ".join(entry.marks), entry.comparison
    said = (one.verdict, one.point, one.certain) if one else (None, None, "")
    ends = (published.low, published.high, entry.ratio)
    return [entry.ours, low, high, entry.n, *band, *ends, marks, failed, published.id, *said]
