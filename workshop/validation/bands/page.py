"""Bands as a table (CSV) that grows table by table, and as a page in Markdown.

Must not know how bands are computed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from repro.core.digits import csv_text
from repro.device.engines.draws import WITHIN
from repro.records.record import write_atomically
from repro.reports.formats.render import markdown_table
from repro.reports.tables.bands import DIGEST_COLUMN, DRAW_COLUMNS, DRAWS_PATH, MANY_DRAWS
from workshop.validation.bands.table_bands import Band, TableBands

COMMAND = "python -m workshop.validation bands"
HEADINGS = (
    *("table", "row", "column", "heading", "unit", "value", "band_low", "band_high", "conclusion"),
    *("replayed", "draws", "prompts", "cells", "assumed_share", "assumed", "numbers", DIGEST_COLUMN),
)


def row_of(found: TableBands, band: Band) -> list[str]:
    """A band as `table.csv` has it."""
    numbers = [f"{one:.4g}" for one in (band.value, *band.ends)]
    about = [found.table, band.row, band.column.key, band.column.heading, band.column.unit]
    assumed, known = found.sources["assumed"], found.sources.total()
    counts = [str(found.draws), str(found.prompts), str(found.cells), f"{assumed / known:.3f}"]
    counts += [str(assumed), str(known), band.digest]
    return [*about, *numbers, band.conclusion, f"{band.replayed:.4g}", *counts]


def write_bands(folder: Path, found: TableBands) -> None:
    """Put a table's bands and draws into the files, in place of its older ones, and write `table.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [
        [found.table, band.row, band.column.key, " ".join(f"{figure:.6g}" for figure in band.drawn)]
        for band in found.bands
    ]
    _put(folder / DRAWS_PATH.name, DRAW_COLUMNS, found.table, drawn)
    own = [row_of(found, band) for band in found.bands]
    write_atomically(folder / "table.md", markdown(_put(folder / "table.csv", HEADINGS, found.table, own)))


def _put(
    path: Path, headings: Sequence[str], table: str, own: Sequence[Sequence[str]]
) -> list[Sequence[str]]:
    """A CSV file with a table's lines in place of its older ones; all lines that it has now, by table."""
    lines: list[Sequence[str]] = []
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as file:
            known = list(csv.reader(file))
        lines = [line for line in known[1:] if line[0] != table] if known[0] == [*headings] else []
    lines = sorted([*lines, *own], key=lambda line: line[0])
    write_atomically(path, csv_text([headings, *lines]))
    return lines


SHOWN = (
    *("table", "row", "heading", "value", "band_low", "band_high", "conclusion"),
    *("replayed", "draws", "prompts", "cells"),
)


def markdown(lines: Iterable[Sequence[str]]) -> str:
    """The page: the comparisons of all tables, whose conclusion a band may change."""
    rows = [dict(zip(HEADINGS, line, strict=True)) for line in lines]
    compared = [row for row in rows if row["conclusion"]]
    open_ones = sum(row["conclusion"] == "either" for row in compared)
    shares = {row["table"]: f"{float(row['assumed_share']):.0%} in {row['table']}" for row in rows}
    text = [
        "# Bands of the papers' headline figures",
        "",
        f"Made by `{COMMAND}`. All numbers of a machine that are assumed are drawn",
        f"together, log-uniformly within {WITHIN:.0%}, and a table's cells run again; a band is the 95%",
        f"range over the draws, of fewer than {MANY_DRAWS} draws the range of all, and has the machine as it "
        "is,",
        "which is one of the machines. Where costs decide what a method does, the cells were run in full in",
        "8 draws. Shown are comparisons; `table.csv` has all. *replayed* is the figure of the replayed cells",
        "and prompts on the machine as it is: the band is carried over from it to the committed value.",
        "docs/emulator.md says what is drawn and what is held.",
        "",
        f"Of {len(compared)} comparisons {open_ones} may turn within their band (either). Assumed are",
        f"{', '.join(shares.values())} of the numbers that costs depend on.",
        "",
        markdown_table(SHOWN, ([row[name] for name in SHOWN] for row in compared)),
        "",
    ]
    return "\n".join(text)
