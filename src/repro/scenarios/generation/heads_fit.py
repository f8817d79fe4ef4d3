"""Accuracies of Medusa heads, fitted to two published acceptance lengths of Ghidorah's Table I.

Owns the parametrization of the fit and its solution. Must not know records, sweeps or how heads sample.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.registry import unknown
from repro.methods.ghidorah.verification_tree import Accuracies, expected_acceptance, grown
from repro.models.drafting.head_ranks import TOP
from repro.reports.reference.reference import PublishedCell, find, load_cells

VERSION = 1
"""Of the fit; raised where the same published values give other accuracies."""

METRIC = "acceptance_length"
WIDTHS = (2, 4)
"""Widths of the trees whose acceptance lengths are fitted, in the order of the ids."""

TREES = "ghidorah.table1.mt_bench"
"""Id prefix of the MT-Bench values: Ghidorah searches all its trees on MT-Bench (sec. IV-B)."""

MODEL = "vicuna-7b-v1.3"
STEEPEST = 12.0
"""Bound on the absolute slope; at 12 the odds change by a factor e^12 from one head to the next."""

PRINTED = 5
"""Number of ranks whose accuracies are published."""


@dataclass(frozen=True)
class FittedHeads:
    """Heads whose estimated trees of width 2 and 4 have the published acceptance lengths.

    Attributes:
        cells: ids of the two published values.
        published: the values, in tokens per verification.
        level: offset added to the log-odds of all heads.
        slope: head k's log-odds are raised by a further k times this.
        accuracies: `[head][rank]`: probability that this rank is the target's own token.
    """

    cells: tuple[str, ...]
    published: tuple[float, ...]
    level: float
    slope: float
    accuracies: tuple[tuple[float, ...], ...]

    @property
    def request(self) -> dict[str, Any]:
        """What the fit is made of, for keys: its outcome has other last digits under another Python."""
        return {"cells": [*self.cells], "published": [*self.published], "model": MODEL}


@dataclass(frozen=True)
class HeadMatch:
    """The calibration of a draft's heads to a row of Table I.

    Attributes:
        heads: the accuracies that the calibrated heads follow.
        trees: the accuracies that the tree search uses: MT-Bench's (Ghidorah sec. IV-B).
    """

    heads: FittedHeads
    trees: FittedHeads

    @property
    def cells(self) -> tuple[str, ...]:
        """Ids of the published values that were fitted."""
        return tuple(dict.fromkeys((*self.heads.cells, *self.trees.cells)))

    @property
    def request(self) -> dict[str, Any]:
        """What the two fits are made of, for keys."""
        return {"heads": self.heads.request, "trees": self.trees.request}


def head_match(names: Sequence[object]) -> HeadMatch:
    """Fit heads to two ids: one dataset's acceptance lengths at widths 2 and 4.

    Raises:
        InputError: the ids are no such pair (with near misses), or the fit has no solution.
    """
    return HeadMatch(fitted(tuple(map(str, names))), fitted(tuple(f"{TREES}.width{w}" for w in WIDTHS)))


@cache
def fitted(names: tuple[str, ...]) -> FittedHeads:
    """Fit heads to two published values.

    Deviation: the paper gives no accuracies of its heads. Accuracies published for the same heads, measured
    in training and so too low, are raised: level + slope * k is added to the log-odds of every cumulative
    accuracy of head k.
    """
    cells = _pair(names)
    values = tuple(float(cell.value_low or 0.0) for cell in cells)
    known = cumulative(published_accuracies())
    level = log_odds(values[0] - 1) - log_odds(known[0][0])

    def reached(slope: float) -> float:
        heads = raised(known, level, slope)
        return expected_acceptance(grown(heads, WIDTHS[1]), heads)

    slope = _solved(reached, values[1], names)
    return FittedHeads(names, values, level, slope, tuple(map(tuple, raised(known, level, slope))))


def published_accuracies(path: Path | None = None, model: str = MODEL) -> list[list[float]]:
    """`[head][n - 1]`: published top-n accuracy."""
    path = path or conf_dir() / "reference" / "head_accuracies.csv"
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if model not in (known := {row["model"] for row in rows}):
        raise InputError(unknown("model with published head accuracies", model, known))
    heads = sorted((row for row in rows if row["model"] == model), key=lambda row: int(row["head"]))
    return [[float(row[f"top{n}"]) for n in range(1, PRINTED + 1)] for row in heads]


def cumulative(heads: Accuracies, ranks: int = TOP) -> list[list[float]]:
    """Extrapolate cumulative accuracies to `ranks` ranks.

    Deviation: nothing is published beyond rank 5. The accuracy that a rank adds is extrapolated as a power of
    the rank, with the exponent given by the published ranks 2 and 5.
    """
    out = []
    for head in heads:
        added = steps(head)
        power = math.log(added[1] / added[-1]) / math.log(len(head) / 2)
        sums = list(head)
        while len(sums) < ranks:
            sums.append(sums[-1] + added[-1] * (len(head) / (len(sums) + 1)) ** power)
        out.append(sums)
    return out


def raised(heads: Accuracies, level: float, slope: float) -> list[list[float]]:
    """Accuracies by rank after adding level + slope * head to the log-odds of the cumulative ones."""
    return [
        steps([1 / (1 + math.exp(-(log_odds(share) + level + slope * head))) for share in shares])
        for head, shares in enumerate(heads)
    ]


def steps(sums: Sequence[float]) -> list[float]:
    """Differences of consecutive cumulative values, the first one included."""
    return [sums[0], *(after - before for before, after in pairwise(sums))]


def log_odds(share: float) -> float:
    """The logit of a probability."""
    return math.log(share / (1 - share))


def _pair(names: tuple[str, ...]) -> list[PublishedCell]:
    """Look up a pair of ids and check that they are one dataset's widths 2 and 4."""
    known = load_cells()
    cells = [find(known, name) for name in names]
    fitting = {c.id for c in known.values() if c.metric == METRIC and c.conditions.get("width", "").isdigit()}
    for cell in cells:
        if cell.id not in fitting:
            raise InputError(f"match: {unknown('published acceptance length of a width', cell.id, fitting)}")
    widths = tuple(int(cell.conditions["width"]) for cell in cells)
    if widths != WIDTHS or len({cell.dataset for cell in cells}) > 1:
        found = ", ".join(f"width {w} on {c.dataset}" for w, c in zip(widths, cells, strict=True))
        raise InputError(
            f"match has {found or 'no id'}; two ids bring heads to a dataset's acceptance lengths at width "
            f"2 and width 4, such as [{TREES}.width2, {TREES}.width4]"
        )
    return cells


def _solved(reached: Callable[[float], float], wanted: float, names: Sequence[str]) -> float:
    """Solve `reached(slope) == wanted` for an increasing function by bisection."""
    low, high = -STEEPEST, STEEPEST
    if not reached(low) < wanted < reached(high):
        raise InputError(
            f"match: heads with the acceptance length of {names[0]} have between {reached(low):.3f} and "
            f"{reached(high):.3f} at width {WIDTHS[1]}, and {names[1]} is {wanted}; choose another pair"
        )
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if reached(middle) < wanted else (low, middle)
    return middle
