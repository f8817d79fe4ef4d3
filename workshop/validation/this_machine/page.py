"""The comparison as a table (Markdown and CSV), and as one line a cell, from one frame of cells.

Owns what is counted together. Must not know how cells were measured or predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from repro.core.digits import csv_text
from repro.records.record import write_atomically
from repro.reports.formats.render import markdown_table
from workshop.validation.this_machine.cells import DECODE_ROWS, LLAMA_CPP, NAMES, OURS, PROMPT_ROWS, SHOWN
from workshop.validation.this_machine.predicting import PredictedPass

COMMAND = "python -m workshop.validation this_machine"
AIM = 0.10, 0.25
"""Largest median and 90th percentile of errors, beyond those of the null arm."""

HEADINGS = (
    *("cells", "n", "median error, %", "p90, %", "null arm: median, %", "null arm: p90, %"),
    *("predicted / measured", "without an engine: median, %"),
)
PHASES = {DECODE_ROWS: "decode", PROMPT_ROWS: "prefill"}
SPEED_HEADINGS = (
    *("model", "phase", "context", "ours, tokens/s", "predicted", "llama.cpp, tokens/s", "predicted"),
    "llama.cpp / ours",
)
CELL_HEADINGS = (
    *("cell", "engine", "model", "precision", "layers", "rows", "context"),
    *("measured_ms", "null_ms", "predicted_ms", "error", "null_error", "passes", "without_engine_ms"),
)


def framed(passes: Sequence[PredictedPass]) -> pd.DataFrame:
    """Every cell, a row each: what it is, seconds, and errors as differences of quotients from 1."""
    rows = [
        (
            *(one.cell.id, one.cell.group.engine, NAMES[one.cell.group.model]),
            *(SHOWN[one.cell.group.dtype], "streamed" if one.cell.group.streamed else "in memory"),
            *(one.cell.rows, one.cell.context, one.measured, one.null, one.predicted),
            *(one.error, one.noise, one.passes, one.roofline),
        )
        for one in passes
    ]
    return pd.DataFrame(rows, columns=[*CELL_HEADINGS])


def errors(cells: pd.DataFrame) -> pd.Series[float]:
    """The errors of some cells, in percent but for the quotient; those of the null arm are noise.

    `plain` is that of the device without an engine: bytes over bandwidth or FLOPs over peak.
    """
    error, noise = (100 * cells[name].abs() for name in ("error", "null_error"))
    plain = 100 * (cells["without_engine_ms"] / cells["measured_ms"] - 1).abs()
    quotient = float(np.exp(np.log(cells["predicted_ms"] / cells["measured_ms"]).mean()))
    figures = {
        "n": len(cells),
        "median": error.median(),
        "p90": error.quantile(0.9),
        "null_median": noise.median(),
        "null_p90": noise.quantile(0.9),
        "quotient": quotient,
        "plain": plain.median(),
    }
    return pd.Series(figures)


def sets(cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """What is counted together, by its name; sets without cells are left out."""
    ours = cells[cells["engine"] == OURS]
    plural = cells["rows"].map(lambda rows: f"{rows} row{'s' * (rows > 1)}")
    found = {
        "all": cells,
        "ours": ours,
        "ours, in memory": ours[ours["layers"] == "in memory"],
        "ours, streamed": ours[ours["layers"] == "streamed"],
        "llama.cpp, the model left out of its fit": cells[cells["engine"] == LLAMA_CPP],
        **dict([*ours.groupby("ours, " + ours["precision"], sort=False)]),
        **dict([*cells.groupby("model", sort=False)]),
        **dict([*cells.groupby(plural, sort=False)]),
        **dict([*cells.groupby("context " + cells["context"].astype(str), sort=False)]),
    }
    return {str(name): some for name, some in found.items() if len(some)}


def lines(cells: pd.DataFrame) -> list[list[str]]:
    """The table's lines as they are shown."""
    shown = []
    for name, some in sets(cells).items():
        n, *sizes, quotient, plain = errors(some)
        of_passes = [f"{size:.1f}" for size in sizes]
        shown.append([name, f"{n:.0f}", *of_passes, f"{quotient:.2f}", f"{plain:.1f}"])
    return shown


def markdown(cells: pd.DataFrame, notes: Sequence[str]) -> str:
    """The page."""
    every = errors(cells)
    median, p90 = every["median"] - every["null_median"], every["p90"] - every["null_p90"]
    text = [
        "# Passes on this machine: predicted from micro-benchmarks, and measured",
        "",
        f"Made by `{COMMAND}`. Layers of invented shapes were timed and costs fitted to them; the emulator",
        "predicts passes of real models from these alone, at contexts that the shapes were not timed at and,",
        "but for one row, at other rows. The models' passes were measured in turns with the shapes, in one",
        f"run, at least {cells['passes'].min()} times in each arm. The null arm is the same cell measured",
        "again: its error is noise. llama.cpp's cells (every matrix in Q4_0) are predicted from its passes",
        "of the other two models, at the shapes' rows and contexts. No cell was fitted on itself. An error",
        "is |predicted / measured - 1|.",
        "",
        f"Beyond the null arm: median {median:.1f}%, p90 {p90:.1f}% (the aim: "
        f"{100 * AIM[0]:.0f}% and {100 * AIM[1]:.0f}%).",
        "",
        markdown_table(HEADINGS, lines(cells)),
        "",
        "*Without an engine*: the same device file alone, its peak and its memory's bandwidth.",
        "",
        *_beside_llama_cpp(cells),
        *notes,
        "",
    ]
    return "\n".join(text)


def _beside_llama_cpp(cells: pd.DataFrame) -> list[str]:
    """Prefill and decode of ours in 4 bits and of llama.cpp in Q4_0, in tokens a second, as text."""
    rows = speeds(cells)
    if not rows:
        return ["Ours beside llama.cpp was not measured: it takes both engines, and ours in 4 bits.", ""]
    text = f"Decoding computes {DECODE_ROWS} row, prefill {PROMPT_ROWS} and the logits of the last."
    return ["## Beside llama.cpp", "", markdown_table(SPEED_HEADINGS, rows), "", text, ""]


def speeds(cells: pd.DataFrame) -> list[list[str]]:
    """A line for each model, phase and context that both engines have, in tokens a second."""
    is_four_bits = (cells["precision"] == SHOWN["int4"]) & (cells["layers"] == "in memory")
    ours, theirs = cells[is_four_bits & (cells["engine"] == OURS)], cells[cells["engine"] == LLAMA_CPP]
    both = ours.merge(theirs, on=["model", "rows", "context"], suffixes=("_of_ours", "_of_theirs"))
    lines = []
    for cell in both[both["rows"].isin(PHASES)].to_dict("records"):
        speeds_of_cell = [
            cell["rows"] / cell[f"{figure}_ms_of_{side}"]
            for side in ("ours", "theirs")
            for figure in ("measured", "predicted")
        ]
        ratio = speeds_of_cell[2] / speeds_of_cell[0]
        setting = [cell["model"], PHASES[cell["rows"]], str(cell["context"])]
        lines.append([*setting, *(f"{speed:.1f}" for speed in speeds_of_cell), f"{ratio:.2f}"])
    return lines


def write_page(folder: Path, passes: Sequence[PredictedPass], notes: Sequence[str]) -> None:
    """Write `table.md`, `table.csv` and `rows.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = framed(passes)
    (folder / "table.md").write_text(markdown(cells, notes), encoding="utf-8")
    write_atomically(folder / "table.csv", csv_text([HEADINGS, *lines(cells)]))
    rows = cells.copy()
    for name in rows:
        if name.endswith("_ms"):
            rows[name] = (1e3 * rows[name]).map("{:.3f}".format)
        elif name.endswith("error"):
            rows[name] = rows[name].map("{:.4f}".format)
    write_atomically(folder / "rows.csv", csv_text([CELL_HEADINGS, *rows.itertuples(index=False, name=None)]))
