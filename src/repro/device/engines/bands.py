"""How far predictions by classes of engines were off: `conf/engine/bands.csv`, which the validation writes.

A band is a factor: of measured values of chips that a prediction knew nothing of, or two rows, a share lay at
most so far above or below it. Must not know cells or records.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from repro.core.paths import conf_dir
from repro.device.facts.holds import HOLDS_KEY, MEASURED

NOTHING, CLASS, ROWS = "nothing", "class", "rows"
"""What is known of a class in a format: no row on another chip, some, or two rows of the chip besides."""

ALL = "all"
"""The processor of a group of all processors, in place of one with few values."""

NOMINAL = (0.5, 0.8, 0.95)
"""Shares of measured values that bands should hold."""

FOUR_BITS = ("q4_0", "int4", "w4a16", "gptq4")
"""Formats of 4 bits, of which a class's own numbers are."""

FEWEST_ROWS = 2
"""Measured values of a chip and phase from which on its rows are known."""


@dataclass(frozen=True)
class ErrorBand:
    """The band of a group of predictions.

    Attributes:
        values: measured values of which it is.
        chips: of how many chips.
        factors: by nominal share.
    """

    values: int
    chips: int
    factors: tuple[float, ...]

    def __str__(self) -> str:
        shares = zip(NOMINAL, self.factors, strict=True)
        parts = [f"{100 * share:.0f}% within {factor:.2f} times" for share, factor in shares]
        return f"{', '.join(parts)} ({self.values} values of {self.chips} chips)"


@cache
def bands() -> dict[tuple[str, str, str], ErrorBand]:
    """Bands by processor, phase and what was known; those alone that hold their nominal shares."""
    path = conf_dir() / "engine" / "bands.csv"
    with path.open(encoding="utf-8") as file:
        return {
            (line["processor"], line["phase"], line["known"]): ErrorBand(
                int(line["values"]),
                int(line["chips"]),
                tuple(float(line[f"factor_{100 * share:.0f}"]) for share in NOMINAL),
            )
            for line in csv.DictReader(file)
            if line["has_band"] == "yes"
        }


def band(processor: str, phase: str, known: str) -> ErrorBand | None:
    """The band of a group, or of all processors together."""
    return bands().get((processor, phase, known)) or bands().get((ALL, phase, known))


def known_of(entries: Mapping[str, Any], phase: str, storage_format: str, is_quantized: bool) -> str:
    """What is known of a processor under a class of engines; "" if its numbers are of no class.

    Args:
        entries: the processor's part of a device file under its engine.
        phase: `prefill` or `decode`.
        storage_format: how the weights are stored.
        is_quantized: whether they compute in int8; other arithmetic has no formats.
    """
    measured = (entries.get(HOLDS_KEY) or {}).get(MEASURED)
    if measured is None:
        return ""
    formats = entries.get("formats") or {}
    if is_quantized and formats and storage_format not in (*formats, *FOUR_BITS):
        return NOTHING
    return ROWS if measured.get(phase, 0) >= FEWEST_ROWS else CLASS
