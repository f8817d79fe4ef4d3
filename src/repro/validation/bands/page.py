"""Bands as a table (CSV) that grows table by table, and as a page in Markdown.

Must not know how bands are computed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from repro.core.digits import csv_text
from repro.records.record import write_atomically
from repro.validation.bands.draws import WITHIN
from repro.validation.bands.table_bands import Band, TableBands

COMMAND = "python -m repro.validation bands"
HEADINGS = (
    *("table", "row", "column", "heading", "unit", "value", "band_low", "band_high", "conclusion"),
    *("replayed", "draws", "prompts", "cells", "assumed_share", "assumed", "numbers"),
)


def row_of(found: TableBands, band: Band) -> list[str]:
    """A band as `table.csv` has it."""
    numbers = [f"{one:.4g}" for one in (band.value, band.low, band.high)]
    about = [found.table, band.row, band.column.key, band.column.heading, band.column.unit]
    counts = [str(found.draws), str(found.prompts), str(found.cells), f"{found.assumed.share:.3f}"]
    counts += [str(found.assumed.assumed), str(found.assumed.numbers)]
    return [*about, *numbers, band.conclusion, f"{band.replayed:.4g}", *counts]


def write_bands(folder: Path, found: TableBands) -> None:
    """Put a table's bands into `table.csv`, in place of its older ones, and write `table.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "table.csv"
    lines: list[list[str]] = []
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as file:
            known = list(csv.reader(file))
        lines = [one for one in known[1:] if one[0] != found.table] if known[0] == [*HEADINGS] else []
    lines = sorted([*lines, *(row_of(found, band) for band in found.bands)], key=lambda one: one[0])
    write_atomically(path, csv_text([HEADINGS, *lines]))
    write_atomically(folder / "table.md", markdown(lines))


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
        "range over the draws. Shown are comparisons; `table.csv` has all figures. *replayed* is the figure",
        "of the replayed cells and prompts on the machine as it is: the band is carried over from it to the",
        "committed value. docs/bands.md says what is drawn and what is held.",
        "",
        f"Of {len(compared)} comparisons {open_ones} may turn within their band (either). Assumed are",
        f"{', '.join(shares.values())} of the numbers that costs depend on.",
        "",
        "| " + " | ".join(SHOWN) + " |",
        "|" + "---|" * len(SHOWN),
        *("| " + " | ".join(row[name] for name in SHOWN) + " |" for row in compared),
        "",
    ]
    return "\n".join(text)
