"""The comparison as a table (Markdown and CSV), and as one line a cell.

Owns what is counted together. Must not know how cells were measured or predicted.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from repro.validation.this_machine.cells import LLAMA_CPP, NAMES, OURS, SHOWN, Cell
from repro.validation.this_machine.predicting import Compared

COMMAND = "python -m repro.validation this_machine"
AIM = 0.10, 0.25
"""Largest median and 90th percentile of errors, beyond those of the null arm."""


class Line(NamedTuple):
    """Errors of some cells.

    Attributes:
        cells: which ones.
        n: how many.
        median: of |predicted / measured - 1|.
        p90: its 90th percentile.
        null_median: of |null / measured - 1|, the same cell measured again.
        null_p90: its 90th percentile.
        ratio: geometric mean of predicted over measured.
        roofline: median error of the device alone, without an engine: bytes over bandwidth or FLOPs over peak.
    """

    cells: str
    n: int
    median: float
    p90: float
    null_median: float
    null_p90: float
    ratio: float
    roofline: float

    @property
    def beyond(self) -> tuple[float, float]:
        """Median and 90th percentile less those of the null arm."""
        return self.median - self.null_median, self.p90 - self.null_p90


def line(cells: str, found: Sequence[Compared]) -> Line:
    """The errors of some cells."""
    wrong, noise, plain = (
        np.abs(values) for values in ([c.error for c in found], [c.noise for c in found], [c.plain for c in found])
    )
    return Line(
        cells,
        len(found),
        float(np.median(wrong)),
        float(np.percentile(wrong, 90)),
        float(np.median(noise)),
        float(np.percentile(noise, 90)),
        float(np.exp(np.mean([np.log(c.predicted / c.measured) for c in found]))),
        float(np.median(plain)),
    )


def lines(found: Sequence[Compared]) -> Iterator[Line]:
    """The table's lines; sets without cells are left out."""

    def ours(chosen: Callable[[Cell], bool]) -> Callable[[Cell], bool]:
        return lambda cell: cell.group.engine == OURS and chosen(cell)

    views: dict[str, Callable[[Cell], bool]] = {
        "all": lambda _: True,
        "ours": ours(lambda _: True),
        "ours, in memory": ours(lambda cell: not cell.group.streamed),
        "ours, streamed": ours(lambda cell: cell.group.streamed),
        "llama.cpp, the model left out of its fit": lambda cell: cell.group.engine == LLAMA_CPP,
    }
    for dtype in dict.fromkeys(c.cell.group.dtype for c in found if c.cell.group.engine == OURS):
        views[f"ours, {SHOWN[dtype]}"] = ours(lambda cell, dtype=dtype: cell.group.dtype == dtype)  # type: ignore[misc]
    for model in dict.fromkeys(c.cell.group.model for c in found):
        views[NAMES[model]] = lambda cell, model=model: cell.group.model == model  # type: ignore[misc]
    for rows in sorted({c.cell.rows for c in found}):
        views[f"{rows} row{'s' * (rows > 1)}"] = lambda cell, rows=rows: cell.rows == rows  # type: ignore[misc]
    for context in sorted({c.cell.context for c in found}):
        views[f"context {context}"] = lambda cell, context=context: cell.context == context  # type: ignore[misc]
    for name, chosen in views.items():
        own = [c for c in found if chosen(c.cell)]
        if own:
            yield line(name, own)


HEADINGS = (
    "cells",
    "n",
    "median error, %",
    "p90, %",
    "null arm: median, %",
    "null arm: p90, %",
    "predicted / measured",
    "without an engine: median, %",
)


def values(one: Line) -> list[str]:
    """A line as it is shown."""
    errors = [one.median, one.p90, one.null_median, one.null_p90]
    return [one.cells, str(one.n), *(f"{100 * e:.1f}" for e in errors), f"{one.ratio:.2f}", f"{100 * one.roofline:.1f}"]


CELL_HEADINGS = (
    *("cell", "engine", "model", "precision", "layers", "rows", "context"),
    *("measured_ms", "null_ms", "predicted_ms", "error", "null_error", "passes", "without_engine_ms"),
)


def cell_values(c: Compared) -> list[str]:
    """A cell as `rows.csv` has it."""
    group = c.cell.group
    where = "streamed" if group.streamed else "in memory"
    named = [c.cell.id, group.engine, NAMES[group.model], SHOWN[group.dtype], where, str(c.cell.rows), str(c.cell.context)]
    times = [f"{1e3 * seconds:.3f}" for seconds in (c.measured, c.null, c.predicted)]
    return [*named, *times, f"{c.error:.4f}", f"{c.noise:.4f}", str(c.passes), f"{1e3 * c.roofline:.3f}"]


def markdown(found: Sequence[Compared], notes: Sequence[str]) -> str:
    """The page."""
    shown = list(lines(found))
    median, p90 = shown[0].beyond
    text = [
        "# Passes on this machine: predicted from micro-benchmarks, and measured",
        "",
        f"Made by `{COMMAND}`. Layers of three invented shapes were timed, the costs fitted to them, and passes of real",
        "models predicted by the emulator; the models' passes were measured in turns with the shapes, in one run. The",
        "null arm is the same cell measured again: its error is noise. llama.cpp's cells are predicted from its",
        "measurements of the other two models. No cell was fitted on itself. An error is |predicted / measured - 1|.",
        "",
        f"Beyond the null arm: median {100 * median:.1f}%, p90 {100 * p90:.1f}% (the aim: {100 * AIM[0]:.0f}% and "
        f"{100 * AIM[1]:.0f}%).",
        "",
        *_table(HEADINGS, [values(one) for one in shown]),
        "",
        "*Without an engine*: the same device file alone, its peak and its memory's bandwidth.",
        "",
        *notes,
        "",
    ]
    return "\n".join(text)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    made = ["| " + " | ".join(cells) + " |" for cells in (headings, *rows)]
    return [made[0], "|" + "---|" * len(headings), *made[1:]]


def write_page(folder: Path, found: Sequence[Compared], notes: Sequence[str]) -> None:
    """Write `table.md`, `table.csv` and `rows.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(markdown(found, notes), encoding="utf-8")
    _write(folder / "table.csv", HEADINGS, [values(one) for one in lines(found)])
    _write(folder / "rows.csv", CELL_HEADINGS, [cell_values(c) for c in found])


def _write(path: Path, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(headings)
        writer.writerows(rows)
