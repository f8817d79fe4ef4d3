"""`repro compare A B`: two records, two tables or two folders of results, figure by figure.

    repro compare 3f9a21 b0c4d7                    two records, by the beginnings of their keys
    repro compare one/table.csv other/table.csv    two tables
    repro compare results outputs/results          all tables of two folders

Owns the command's arguments and what it prints. `experiments.summaries.comparing` owns the comparison.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from repro.core.errors import InputError
from repro.experiments.cli import screen
from repro.experiments.summaries.cell_screen import headline
from repro.experiments.summaries.comparing import (
    FigurePair,
    compare_records,
    compare_tables,
    counts,
    differing_settings,
)
from repro.records.record import FEWEST, Record, Scalar
from repro.records.results import Results, open_results
from repro.reports.formats.values import decimals, unit_words, value_words

BEGINNING = re.compile(r"[0-9a-f]{4,64}")
MOST = 60
"""Figures of tables that are printed unless --all is given."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns 0, or 2 for invalid input."""
    parser = argparse.ArgumentParser(
        prog="repro compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "a", metavar="A", help="a record's key or its beginning, a table's CSV, a folder of results"
    )
    parser.add_argument("b", metavar="B", help="the same kind of thing")
    parser.add_argument("--results", type=Path, default=Path("outputs/results"), help="folder of the records")
    parser.add_argument(
        "--all", action="store_true", help="also print figures that are equal, and all others"
    )
    options = parser.parse_args(arguments)
    console = screen()
    try:
        if Path(options.a).exists() and Path(options.b).exists():
            show_tables(console, compare_tables(Path(options.a), Path(options.b)), options.all)
        else:
            show_records(console, open_results(options.results), (options.a, options.b))
    except InputError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    return 0


def show_records(console: Console, store: Results, keys: tuple[str, str]) -> None:
    """Print all figures of two records side by side.

    Raises:
        InputError: a key is no beginning of exactly one record's, or a cell failed.
    """
    ours, other = (record_of(store, key) for key in keys)
    for name, record in zip("AB", (ours, other), strict=True):
        console.print(Text(f"{name}  {record.key[:12]}  {headline(record)}"), soft_wrap=True)
    if changes := differing_settings(ours, other):
        console.print(f"They differ in {'; '.join(changes)}.", highlight=False, soft_wrap=True)
    compared = compare_records(ours, other, (store.rounds(ours.key), store.rounds(other.key)))
    grid = Grid(box=box.SIMPLE_HEAD)
    for heading in ("", "A", "B", "B over A, or B - A", "95% interval", "unit"):
        grid.add_column(heading, justify="right" if heading.startswith(("A", "B")) else "left", no_wrap=True)
    for one in compared:
        if one.metric and not (isinstance(one.ours, str) or isinstance(one.other, str)):
            grid.add_row(*map(Text, record_words(one)), style="dim" if one.state == "equal" else "")
    console.print(grid, counts(compared), sep="\n", highlight=False)
    if not any(one.interval for one in compared):
        console.print(
            f"No intervals: they need the same {FEWEST} or more prompts on both sides.", style="dim"
        )


def record_of(store: Results, beginning: str) -> Record:
    """The finished record whose key begins so.

    Raises:
        InputError: there is none, there are several, or its cell failed.
    """
    if not BEGINNING.fullmatch(beginning):
        raise InputError(
            f"{beginning!r} is neither an existing file or folder, nor the beginning of a record's key (4 or "
            "more hexadecimal digits)"
        )
    found = [record for record in store.all() if record.key.startswith(beginning)]
    if not found:
        raise InputError(
            f"{store.root} has no record whose key begins with {beginning}; choose --results=FOLDER"
        )
    if len(found) > 1:
        several = ", ".join(record.key[:12] for record in found[:5])
        raise InputError(f"{len(found)} keys begin with {beginning}: {several}; give more digits")
    if not found[0].done:
        raise InputError(f"the cell {found[0].key[:12]} failed, so it has no figures to compare")
    return found[0]


def record_words(one: FigurePair) -> list[str]:
    """A line of two records' figures."""
    metric = one.metric
    assert metric is not None
    change = interval = ""
    if one.change is not None and one.state == "different":
        scale, digits = (1.0, 2) if one.how == "ratio" else (metric.scale, decimals(metric, [one.change]))
        change = (
            f"{one.change * scale:.{digits}f} ×"
            if one.how == "ratio"
            else f"{one.change * scale:+.{digits}f}"
        )
        if one.interval:
            interval = "[{:.{d}f}, {:.{d}f}]".format(*(end * scale for end in one.interval), d=digits)
    both = [value_words(metric, value) for value in (one.ours, one.other)]
    return [
        metric.heading,
        *both,
        change or ("=" if one.state == "equal" else one.state),
        interval,
        unit_words(metric),
    ]


def show_tables(console: Console, compared: Sequence[FigurePair], whole: bool) -> None:
    """Print the figures of two tables or folders that are not equal, and the counts."""
    shown = [one for one in compared if whole or one.state != "equal"]
    grid = Grid(box=box.SIMPLE_HEAD)
    for heading in ("figure", "A", "B", "B over A", "state"):
        grid.add_column(heading, justify="left" if heading in ("figure", "state") else "right")
    for one in shown if whole else shown[:MOST]:
        change = "" if one.change is None else f"{one.change:.4g}"
        grid.add_row(*map(Text, (one.name, _plain(one.ours), _plain(one.other), change, one.state)))
    if shown:
        console.print(grid)
    if len(shown) > MOST and not whole:
        console.print(f"... and {len(shown) - MOST} more; --all prints them", style="dim")
    console.print(counts(compared), highlight=False)


def _plain(value: Scalar) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.6g}"


if __name__ == "__main__":
    sys.exit(main())
