"""Leave-one-out over the baselines of the papers: every fit of `conf/fit/`, cell by cell.

Must not fit anything itself, nor know which numbers a fit has.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from repro.fitting.device_fit import FitResult, fit_device
from repro.fitting.errors import ErrorSummary, errors, skill
from repro.fitting.specification import specification, specifications

COMMAND = "python -m repro.validation papers"
HEADINGS = ("fit", "numbers", "cell", "published", "fitted", "left out", "trivial")


def fit_all() -> dict[str, FitResult]:
    """Every fit, by the name of its specification."""
    return {name: fit_device(specification(name)) for name in specifications()}


def cell_rows(found: Mapping[str, FitResult]) -> Iterator[list[str]]:
    """Each fitted cell: as published, fitted, predicted by the other cells, and by the trivial rule."""
    for name, result in found.items():
        fitted = result.fitted
        for cell in result.specification.cells:
            values = (fitted.get(cell.id), result.left_out.get(cell.id), result.trivial.get(cell.id))
            shown = ["" if value is None else f"{value:.4g}" for value in values]
            count = str(len(result.specification.numbers))
            yield [name, count, cell.id, f"{result.aims[cell.id]:.4g}", *shown]


def summary(found: Mapping[str, FitResult]) -> list[list[str]]:
    """Errors of what was fitted, left out and trivially scaled, over all cells that have a value left out."""

    def every(values: Callable[[FitResult], Mapping[str, float]]) -> dict[str, float]:
        """By fit and cell, since two engines may be fitted to one cell."""
        return {f"{name} {cell}": v for name, result in found.items() for cell, v in values(result).items()}

    left, trivial = every(lambda one: one.left_out), every(lambda one: one.trivial)
    fitted, truth = every(lambda one: one.fitted), every(lambda one: one.aims)
    determined = sorted(left)
    rule = errors(trivial, truth, determined)

    def row(name: str, one: ErrorSummary, compared: bool = True) -> list[str]:
        gain = skill(one, rule) if compared else float("nan")
        shown = [f"{100 * one.median:.1f}", f"{100 * one.p90:.1f}", "" if gain != gain else f"{gain:.2f}"]
        return [name, str(one.n), *(shown if one.n else ["", "", ""])]

    return [
        row("left out", errors(left, truth, determined)),
        row("trivial", rule),
        row("fitted", errors(fitted, truth, determined)),
        row(
            "fitted, where no cell can be left out", errors(fitted, truth, sorted(truth.keys() - left)), False
        ),
    ]


def write_papers(folder: Path, found: Mapping[str, FitResult]) -> None:
    """Write `table.md` and `table.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(cell_rows(found))
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADINGS)
        writer.writerows(rows)
    text = [
        "# Fits to the papers' baselines, each cell left out",
        "",
        f"Made by `{COMMAND}`. `left out` is predicted by a fit to the other cells of the same",
        "specification (`conf/fit/`); it is empty where they do not determine the numbers. `trivial` is the",
        "nearest other cell of the same measure; times are scaled by bytes of weights.",
        "",
        *_table(("values", "n", "median error, %", "p90, %", "skill vs trivial"), summary(found)),
        "",
        *_table(HEADINGS, rows),
        "",
    ]
    (folder / "table.md").write_text("\n".join(text))


def _table(headings: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    def line(cells: tuple[str, ...] | list[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    return [line(headings), "|" + "---|" * len(headings), *(line(row) for row in rows)]
