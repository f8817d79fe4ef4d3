"""Tables on the terminal, in Markdown and in CSV.

Owns these three formats. `layout` owns the text of cells and notes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from repro.reports.formats.layout import NOT_RUN, Grid, Page
from repro.reports.tables.table import Entry, Published, Table

CSV_HEADER = (
    *("row", "id", "column", "unit", "ours", "spread_low", "spread_high", "published_low", "published_high"),
    *("ratio", "marks", "failed", "reference", "note", "commit", "date", "cell", "baseline"),
)


def to_screen(page: Page) -> RenderableType:
    """The tables with their notes for a terminal, without the BibTeX."""
    titles = [page.title, *[None] * (len(page.grids) - 1)]
    parts = [_rich(words, title) for words, title in zip(page.grids, titles, strict=True)]
    return Group(*parts, *(Text(line, style="dim") for line in page.notes))


def _rich(words: Grid, title: str | None) -> RichTable:
    shown = RichTable(title=title, box=box.SIMPLE_HEAD, title_style="bold", title_justify="left")
    names = [name for h in words.headings for name in h.flat]
    for name, letter in zip(names, words.alignment, strict=True):
        side: Literal["left", "right"] = "right" if letter == "r" else "left"
        shown.add_column(name.replace(" (", "\n(", 1), justify=side, vertical="bottom")
    for line in words.lines:
        shown.add_row(*map(Text, line))
    return shown


def to_markdown(page: Page, bibtex: Sequence[str]) -> str:
    """GitHub Markdown: tables, notes, BibTeX."""
    parts = [f"## {_markdown(page.title)}", *map(_pipes, page.grids)]
    parts += ["\n".join(f"- {_markdown(line)}" for line in page.notes)]
    parts += ["```bibtex\n" + "\n\n".join(bibtex) + "\n```"]
    return "\n\n".join(parts) + "\n"


def _pipes(words: Grid) -> str:
    names = [name for h in words.headings for name in h.flat]
    rule = ["---:" if letter == "r" else "---" for letter in words.alignment]
    lines = [names, rule, *words.lines]
    escaped = [[_markdown(word) for word in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def _markdown(text: str) -> str:
    """Text with Markdown characters escaped; in text with code only the table's bar is."""
    special = "|" if "`" in text else "|*<>"
    return "".join(f"\\{c}" if c in special else c for c in text)


def to_csv(table: Table) -> str:
    """CSV with one unrounded line per value, with published value, marks and source; aside values last.

    `cell` and `baseline` are beginnings of the keys of the cells that a value is made from and compared with;
    `failed` says so, or that the row was not run.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    origin = (" ".join(table.commits), table.date)
    for row in table.rows:
        for column, entry in zip(table.columns, row.entries, strict=True):
            found = [
                *_csv_entry(entry, row.run),
                "",
                *origin,
                " ".join(entry.cells),
                " ".join(entry.baseline),
            ]
            writer.writerow([row.name, row.id, column.key, column.unit, *found])
    for aside in table.aside:
        entry = Entry(published=aside.published)
        found = [*_csv_entry(entry), aside.note, *origin, "", ""]
        writer.writerow([aside.label, "", "aside", aside.unit, *found])
    return out.getvalue()


def _csv_entry(entry: Entry, run: bool = True) -> list[object]:
    published = entry.published or Published("", None, None)
    low, high = entry.spread if isinstance(entry.spread, tuple) else (None, None)
    if isinstance(entry.spread, float) and isinstance(entry.ours, (int, float)):
        low, high = entry.ours - entry.spread, entry.ours + entry.spread
    failed = "failed" if entry.failed is not None else "" if run else NOT_RUN
    marks = " ".join(entry.marks)
    return [entry.ours, low, high, published.low, published.high, entry.ratio, marks, failed, published.id]
