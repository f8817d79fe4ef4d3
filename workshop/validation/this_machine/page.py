"""The comparison as a table (Markdown and CSV), and as one line a cell.

Owns what is counted together. Must not know how cells were measured or predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from repro.core.digits import csv_text
from repro.records.record import write_atomically
from workshop.validation.this_machine.cells import LLAMA_CPP, NAMES, OURS, SHOWN, MachineCell
from workshop.validation.this_machine.predicting import PredictedPass

COMMAND = "python -m workshop.validation this_machine"
AIM = 0.10, 0.25
"""Largest median and 90th percentile of errors, beyond those of the null arm."""


class ErrorLine(NamedTuple):
    """Errors of some cells.

    Attributes:
        cells: which ones.
        n: how many.
        median: of |predicted / measured - 1|.
        p90: its 90th percentile.
        null_median: of |null / measured - 1|, the same cell measured again.
        null_p90: its 90th percentile.
        ratio: geometric mean of predicted over measured.
        roofline: median error of the device alone, without an engine: bytes over bandwidth or FLOPs over
            peak.
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


def line(cells: str, found: Sequence[PredictedPass]) -> ErrorLine:
    """The errors of some cells."""
    wrong, noise, plain = (
        np.abs(values)
        for values in ([c.error for c in found], [c.noise for c in found], [c.plain for c in found])
    )
    return ErrorLine(
        cells,
        len(found),
        float(np.median(wrong)),
        float(np.percentile(wrong, 90)),
        float(np.median(noise)),
        float(np.percentile(noise, 90)),
        float(np.exp(np.mean([np.log(c.predicted / c.measured) for c in found]))),
        float(np.median(plain)),
    )


def lines(found: Sequence[PredictedPass]) -> Iterator[ErrorLine]:
    """The table's lines; sets without cells are left out."""
    ours = [c for c in found if c.cell.group.engine == OURS]
    peers = [c for c in found if c.cell.group.engine == LLAMA_CPP]
    sets = {
        "all": list(found),
        "ours": ours,
        "ours, in memory": [c for c in ours if not c.cell.group.streamed],
        "ours, streamed": [c for c in ours if c.cell.group.streamed],
        "llama.cpp, the model left out of its fit": peers,
        **_split(ours, lambda cell: f"ours, {SHOWN[cell.group.dtype]}"),
        **_split(found, lambda cell: NAMES[cell.group.model]),
        **_split(found, lambda cell: f"{cell.rows} row{'s' * (cell.rows > 1)}"),
        **_split(found, lambda cell: f"context {cell.context}"),
    }
    yield from (line(name, own) for name, own in sets.items() if own)


def _split(
    found: Sequence[PredictedPass], name: Callable[[MachineCell], str]
) -> dict[str, list[PredictedPass]]:
    """The cells of each name."""
    sets: dict[str, list[PredictedPass]] = {}
    for c in found:
        sets.setdefault(name(c.cell), []).append(c)
    return sets


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


def values(one: ErrorLine) -> list[str]:
    """A line as it is shown."""
    errors = [one.median, one.p90, one.null_median, one.null_p90]
    return [
        one.cells,
        str(one.n),
        *(f"{100 * e:.1f}" for e in errors),
        f"{one.ratio:.2f}",
        f"{100 * one.roofline:.1f}",
    ]


CELL_HEADINGS = (
    *("cell", "engine", "model", "precision", "layers", "rows", "context"),
    *("measured_ms", "null_ms", "predicted_ms", "error", "null_error", "passes", "without_engine_ms"),
)


def cell_values(c: PredictedPass) -> list[str]:
    """A cell as `rows.csv` has it."""
    group = c.cell.group
    where = "streamed" if group.streamed else "in memory"
    named = [
        c.cell.id,
        group.engine,
        NAMES[group.model],
        SHOWN[group.dtype],
        where,
        str(c.cell.rows),
        str(c.cell.context),
    ]
    times = [f"{1e3 * seconds:.3f}" for seconds in (c.measured, c.null, c.predicted)]
    return [*named, *times, f"{c.error:.4f}", f"{c.noise:.4f}", str(c.passes), f"{1e3 * c.roofline:.3f}"]


def markdown(found: Sequence[PredictedPass], notes: Sequence[str]) -> str:
    """The page."""
    shown = list(lines(found))
    median, p90 = shown[0].beyond
    text = [
        "# Passes on this machine: predicted from micro-benchmarks, and measured",
        "",
        f"Made by `{COMMAND}`. Layers of invented shapes were timed and costs fitted to them; the emulator",
        "predicts passes of real models from these alone. The models' passes were measured in turns with the",
        "shapes, in one run. The null arm is the same cell measured again: its error is noise. llama.cpp's",
        "cells (every matrix in Q4_0) are predicted from its passes of the other two models, measured in",
        "turns. No cell was fitted on itself. An error is |predicted / measured - 1|.",
        "",
        f"Beyond the null arm: median {100 * median:.1f}%, p90 {100 * p90:.1f}% (the aim: "
        f"{100 * AIM[0]:.0f}% and {100 * AIM[1]:.0f}%).",
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


def write_page(folder: Path, found: Sequence[PredictedPass], notes: Sequence[str]) -> None:
    """Write `table.md`, `table.csv` and `rows.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(markdown(found, notes), encoding="utf-8")
    write_atomically(folder / "table.csv", csv_text([HEADINGS, *map(values, lines(found))]))
    write_atomically(folder / "rows.csv", csv_text([CELL_HEADINGS, *map(cell_values, found)]))
