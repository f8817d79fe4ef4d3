"""`python -m workshop.validation`: hold the emulator against measurements, of others and of this machine.

    python -m workshop.validation phones [--out FOLDER]
    python -m workshop.validation papers [--out FOLDER]
    python -m workshop.validation plausibility [--out FOLDER]
    python -m workshop.validation baselines [--out FOLDER]
    python -m workshop.validation this_machine [--help]
    python -m workshop.validation bands [--help]
    python -m workshop.validation summary [--results FOLDER]

`phones` fits the classes of engines to conf/reference/phones.csv and phones_s23.csv without each chip in
turn, predicts what was left out, and writes table.md, table.csv, rows.csv, bands.csv, figure.png and
figure.pdf (some minutes on one core), and without --out the bands into conf/engine. `papers` repeats every
fit of conf/fit without each of its cells in turn (some minutes). `this_machine`
calibrates this machine, predicts passes of real models and measures them. `baselines` sets the engines of
README's and the comparisons' tables beside the best public rows, and names what is far from them. `bands`
says how far the papers' headline figures move with what is assumed of their machines. `summary` writes
accuracy.md beside the tables, and their headlines into docs/emulator.md and the repository's README.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from repro.core.errors import InputError
from repro.core.output import prepare_process
from repro.core.paths import project_root
from repro.core.registry import unknown
from workshop.validation.bands import command as bands
from workshop.validation.baselines import write_baselines
from workshop.validation.papers import HEADINGS as PAPER_HEADINGS
from workshop.validation.papers import baseline_cells, fit_all, summary, write_papers
from workshop.validation.phones.comparison import compare
from workshop.validation.phones.page import HEADINGS, keep_bands, lines, write_page
from workshop.validation.phones.picture import draw_phones
from workshop.validation.phones.rows import phone_rows
from workshop.validation.plausibility import write_plausibility
from workshop.validation.summary import write_accuracy
from workshop.validation.this_machine import command as this_machine

NAMES = ("phones", "papers", "plausibility", "baselines", "summary")
PHONES, PAPERS, PLAUSIBILITY, BASELINES, SUMMARY = NAMES
COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    this_machine.NAME: this_machine.main,
    bands.NAME: bands.main,
}
"""Validations with options of their own."""

ALL = (*NAMES, *COMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 2 for an input that does not exist."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in COMMANDS:
        return COMMANDS[given[0]](given[1:])
    parser = argparse.ArgumentParser(
        prog="python -m workshop.validation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help=f"one of {', '.join(ALL)}")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: results/validation/NAME")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="of `summary`: results/validation")
    options = parser.parse_args(given)
    try:
        if options.name not in NAMES:
            raise InputError(unknown("validation", options.name, ALL))
        results = options.results or project_root() / "results" / "validation"
        folder = options.out or results / options.name
        if options.name == SUMMARY:
            Console().print(f"written to {', '.join(map(str, write_accuracy(results, project_root())))}")
        elif options.name == PAPERS:
            _papers(folder)
        elif options.name == BASELINES:
            write_baselines(folder, project_root())
            Console().print(f"written to {folder} and into README.md")
        elif options.name == PLAUSIBILITY:
            write_plausibility(folder)
            Console().print(f"written to {folder}")
        else:
            _phones(folder, is_kept=options.out is None)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _papers(folder: Path) -> None:
    found = list(baseline_cells(fit_all()))
    write_papers(folder, found)
    table = Table(*PAPER_HEADINGS)
    for row in summary(found):
        table.add_row(*row)
    Console().print(table, f"written to {folder}")


def _phones(folder: Path, is_kept: bool) -> None:
    frame = compare(phone_rows())
    write_page(folder, frame)
    if is_kept:
        keep_bands(folder)
    for format in ("png", "pdf"):
        (folder / f"figure.{format}").write_bytes(draw_phones(frame, format))
    table = Table(*HEADINGS)
    for line in lines(frame):
        table.add_row(*line)
    Console().print(table, f"written to {folder}")


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
