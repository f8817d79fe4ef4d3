"""`repro compare A B`: two records, two tables or two folders of results, figure by figure.

    repro compare 3f9a21 b0c4d7                    two records, by the beginnings of their keys
    repro compare one/table.csv other/table.csv    two tables
    repro compare results outputs/results          all tables of two folders
    repro compare A B --worse-than 5%              exit status 1 if a figure of B is worse, or is gone

Worse is in the direction of each metric, by more than 5% of A's figure, and beyond A's interval or that of
the change over the same prompts, where one is known.

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

PERCENTAGE = re.compile(r"\d+(\.\d+)?%")
BEGINNING = re.compile(r"[0-9a-f]{4,64}")
MOST = 60
"""Figures of tables that are printed unless --all is given."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns 0, 1 with --worse-than if B is worse or lacks figures, or 2 for invalid input."""
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
    parser.add_argument(
        "--worse-than", metavar="5%", help="exit with 1 if a figure is worse by more than that, or gone"
    )
    options = parser.parse_args(arguments)
    console = screen()
    try:
        share = None if options.worse_than is None else share_of(options.worse_than)
        if Path(options.a).exists() and Path(options.b).exists():
            compared = compare_tables(Path(options.a), Path(options.b))
            show_tables(console, compared, options.all)
        else:
            compared = show_records(console, open_results(options.results), (options.a, options.b))
        if share is not None:
            return show_worse(console, compared, share)
    except InputError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    return 0


def share_of(percentage: str) -> float:
    """The share that a text such as `5%` or `0%` names; InputError for another one."""
    if not PERCENTAGE.fullmatch(percentage):
        raise InputError(f"--worse-than {percentage}: give a percentage of A's figure, such as 5% or 0.5%")
    return float(percentage.removesuffix("%")) / 100


def show_worse(console: Console, compared: Sequence[FigurePair], share: float) -> int:
    """Print which figures are worse by more than a share; return 1 if there are any, or some are gone.

    Raises:
        InputError: no figure has a better direction.
    """
    numbers = [pair for pair in compared if isinstance(pair.ours, (int, float))]
    directed = [pair for pair in numbers if pair.better]
    if numbers and not directed:
        raise InputError(
            "no figure says in which direction it is better: the tables' CSV files have no column `better`; "
            "make them again with `repro table`"
        )
    worse = [pair for pair in directed if pair.is_worse(share)]
    gone = [pair for pair in compared if pair.state == "gone"]
    for pair in worse[:MOST]:
        line = f"worse: {pair.name}, {plain(pair.ours)} to {plain(pair.other)} ({pair.better} is better)"
        console.print(line, highlight=False, soft_wrap=True)
    undirected = len(numbers) - len(directed)
    console.print(
        f"{len(worse)} worse by more than {100 * share:g}%, {len(gone)} gone"
        f"{f'; {undirected} have no better direction, as published values' if undirected else ''}",
        highlight=False,
        soft_wrap=True,
    )
    return 1 if worse or gone else 0


def show_records(console: Console, store: Results, keys: tuple[str, str]) -> list[FigurePair]:
    """Print all figures of two records side by side; return them.

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
    return compared


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
        grid.add_row(*map(Text, (one.name, plain(one.ours), plain(one.other), change, one.state)))
    if shown:
        console.print(grid)
    if len(shown) > MOST and not whole:
        console.print(f"... and {len(shown) - MOST} more; --all prints them", style="dim")
    console.print(counts(compared), highlight=False)


def plain(value: Scalar) -> str:
    """A figure with six digits; "" without one."""
    return "" if value is None else value if isinstance(value, str) else f"{value:.6g}"


if __name__ == "__main__":
    sys.exit(main())
