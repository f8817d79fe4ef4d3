"""What an error is worth: the trivial predictor's error, and the noise of the paper's own numbers.

Owns both. The trivial predictor knows fitted cells and baselines, and nothing of any system.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from repro.core.errors import InputError
from repro.reports.comparison.comparison import Compared, Figure
from repro.reports.comparison.summary import median
from repro.reports.reference.reference import PublishedCell, find

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*B\b", re.IGNORECASE)
"""Billions of parameters in a model's name."""

COORDINATES = ("artifact", "device", "system", "dataset", "condition", "draft_model", "relative_to")
"""Fields by which a fitted cell is near a predicted one."""

GROWS = ("latency", "energy", "memory", "time")
SHRINKS = ("throughput",)
"""Words of metrics that grow, and shrink, in proportion to a model's weights."""


def trivial(one: Compared, fitted: Sequence[PublishedCell]) -> Compared | None:
    """The comparison with the trivial predictor's figure in place of ours; None if it has none.

    A ratio to a baseline is 1 and a difference from it 0: all methods are equal. Rouge-L is that of the
    target itself. Another value is that of the nearest fitted cell of the same paper and metric; times,
    energies and sizes are scaled by the weights of both models, as their names say.
    """
    value = _of_methods(one) if one.cell.relative_to or one.cell.metric == "rouge_l" else None
    value = _nearest(one, fitted) if value is None else value
    return None if value is None else replace(one, ours=(Figure(value),), certain="", n=None)


def _of_methods(one: Compared) -> float | None:
    if one.cell.metric == "rouge_l":
        return 100.0
    if one.unit == "x":
        return 1.0
    return 0.0 if one.unit in ("%", "percentage_point") else None


def _nearest(one: Compared, fitted: Sequence[PublishedCell]) -> float | None:
    cell = one.cell
    others = [
        (near, value)
        for near in fitted
        if near.id != cell.id and (near.paper, near.metric, near.unit) == (cell.paper, cell.metric, cell.unit)
        if near.value_low is not None and near.value_low == near.value_high
        if (value := _scaled(near, cell)) is not None
    ]
    if not others or not cell.value_low or one.published.low is None:
        return None
    _, value = max(others, key=lambda other: (_alike(other[0], cell), other[0].model == cell.model))
    return value * one.published.low / cell.value_low  # in the unit of ours


def _scaled(near: PublishedCell, cell: PublishedCell) -> float | None:
    """The near cell's value for the weights of the other's model; None if a size is not known."""
    assert near.value_low is not None
    if near.model == cell.model:
        return near.value_low
    power = 1 if any(word in cell.metric for word in GROWS) else 0
    power = -1 if any(word in cell.metric for word in SHRINKS) else power
    if not power:
        return near.value_low
    sizes = [SIZE.search(name) for name in (cell.model, near.model)]
    return near.value_low * (float(sizes[0][1]) / float(sizes[1][1])) ** power if all(sizes) else None  # type: ignore[index]


def _alike(near: PublishedCell, cell: PublishedCell) -> int:
    return sum(getattr(near, name) == getattr(cell, name) for name in COORDINATES)


def skill(ours: Sequence[Compared], theirs: Sequence[Compared | None]) -> tuple[int, float, float] | None:
    """Where a trivial figure exists: how many, its median error, and 1 less ours over it."""
    both = [(a, b) for a, b in zip(ours, theirs, strict=True) if b is not None and b.error is not None]
    own, other = median([a for a, _ in both]), median([b for _, b in both])
    return (len(both), other, 1 - own / other) if own is not None and other else None


def read_floors(path: Path, cells: Mapping[str, PublishedCell]) -> dict[str, float]:
    """How far the paper's own other numbers are from printed values, relative, by id.

    The file has the id, the other number or range, and where it stands.

    Raises:
        InputError: an id is no published cell, or a number is missing.
    """
    found: dict[str, float] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            cell = find(cells, line["id"])
            try:
                low, high = float(line["low"]), float(line["high"] or line["low"])
            except ValueError as wrong:
                raise InputError(f"{path.name}, {line['id']}: {wrong}") from None
            found[cell.id] = _apart(cell, low, high)
    return found


def _apart(cell: PublishedCell, low: float, high: float) -> float:
    """The farther relative difference of the ends; a bound is taken as a value."""
    ends = ((cell.value_low, low), (cell.value_high, high))
    return max(abs(other / own - 1) for own, other in ends if own)
