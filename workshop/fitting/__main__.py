"""`python -m workshop.fitting`: fit the numbers of device and engine files to published measurements.

    python -m workshop.fitting                  every specification of conf/fit, and the classes of engines
    python -m workshop.fitting jetson_tx2       one of them: its numbers, then each cell beside ours
    python -m workshop.fitting --check          exit 1 if a file differs from its fit
    python -m workshop.fitting phones --write   put the fitted numbers into the files

A specification says which numbers are fitted to which cells of baselines. Each cell is shown as fitted and
as predicted by a fit that did not see it; `python -m workshop.validation papers` sets trivial rules beside
these.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from repro.core.errors import InputError
from repro.core.output import prepare_process
from repro.core.reading import read_mapping
from repro.core.registry import unknown
from workshop.fitting.device_fit import FitResult, differences, fit_device
from workshop.fitting.errors import errors
from workshop.fitting.specification import (
    conf_file,
    leaf,
    number_at,
    specification,
    specifications,
    write_number,
)
from workshop.validation.phones.engine_files import check_engines, write_engines

PHONES = "phones"
"""The fit of all classes of engines, specified in conf/fit/classes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 1 if a checked file differs, 2 for an input that does not exist."""
    parser = argparse.ArgumentParser(
        prog="python -m workshop.fitting",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = [*specifications(), PHONES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("--check", action="store_true", help="only say where a file differs from its fit")
    parser.add_argument("--write", action="store_true", help="put the fitted numbers into the files")
    options = parser.parse_args(arguments)
    console, failures = Console(), list[str]()
    try:
        for name in options.names:
            if name not in known:
                raise InputError(unknown("fit", name, known))
        for name in options.names or known:
            failures += _phones(options.write) if name == PHONES else _one(name, options, console)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def _one(name: str, options: argparse.Namespace, console: Console) -> list[str]:
    result = fit_device(specification(name))
    if not options.check:
        console.print(numbers_table(name, result), cells_table(name, result), f"{name}: {sentence(result)}")
    if options.write and not result.specification.origin:
        for number in result.specification.numbers:
            write_number(conf_file(number.file), number.at, result.solution.values[number.name])
        for carried in result.specification.carried:
            value = carried.ratio * result.solution.values[carried.of.name]
            write_number(conf_file(carried.file), carried.at, value)
    return differences(result)


def numbers_table(name: str, result: FitResult) -> Table:
    """The fitted numbers beside those of the files."""
    table = Table("place", "fit", "in the file", "unit", title=f"{name}: numbers", title_justify="left")
    for number in result.specification.numbers:
        content = read_mapping(conf_file(number.file))
        fitted, written = result.solution.values[number.name], number_at(content, number.at)
        bound = " (at its bound)" if number.name in result.solution.at_bound else ""
        unit = str(leaf(content, number.at)[0].get("unit", ""))
        table.add_row(number.name, f"{fitted:.4g}{bound}", f"{written:.4g}", unit)
    return table


def cells_table(name: str, result: FitResult) -> Table:
    """Each fitted cell: published, ours, from a fit that did not see it."""
    heads = "cell (s, J, or as printed)", "published", "fitted", "left out"
    table = Table(*heads, title=f"{name}: cells", title_justify="left")
    for cell, published in result.aims.items():
        values = result.fitted.get(cell), result.left_out.get(cell)
        shown = ["-" if value is None else f"{value:.4g} ({value / published - 1:+.0%})" for value in values]
        table.add_row(cell, f"{published:.4g}", *shown)
    return table


def sentence(result: FitResult) -> str:
    """The errors on one line, and what gave the files' numbers if not the fit."""
    parts = []
    for what, values in (("fitted", result.fitted), ("left out", result.left_out)):
        summary = errors(values, result.aims, [*result.aims])
        words = f"{summary.median:.1%} median, {summary.p90:.1%} p90 (n={summary.n})" if summary.n else "none"
        parts.append(f"{what}: {words}")
    if result.specification.origin:
        parts.append(f"the files' numbers are of {result.specification.origin}")
    return "; ".join(parts)


def _phones(write: bool) -> list[str]:
    if write:
        write_engines()
    return check_engines()


if __name__ == "__main__":
    prepare_process()
    sys.exit(main())
