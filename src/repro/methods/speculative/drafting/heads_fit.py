"""Accuracies of Medusa heads, fitted to two acceptance lengths, such as those of Ghidorah's Table I.

Owns the parametrization of the fit and its solution. Must not know where acceptance lengths are published.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.methods.speculative.drafting.head_ranks import TOP_RANKS
from repro.methods.speculative.drafting.verification_tree import (
    Accuracies,
    estimate_tree,
    expected_acceptance,
)

VERSION = 1
"""Of the fit; raised where the same published values give other accuracies."""

WIDTHS = (2, 4)
"""Widths of the trees whose acceptance lengths are fitted."""

MODEL_NAME = "vicuna-7b-v1.3"
STEEPEST_SLOPE = 12.0
"""Bound on the absolute slope; at 12 the odds change by a factor e^12 from one head to the next."""

PRINTED_RANKS = 5
"""Number of ranks whose accuracies are published."""


@dataclass(frozen=True)
class FittedHeads:
    """Heads whose estimated trees of width 2 and 4 have two acceptance lengths.

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
        return {"cells": [*self.cells], "published": [*self.published], "model": MODEL_NAME}


@cache
def fit_heads(cells: tuple[str, str], published_acceptances: tuple[float, float]) -> FittedHeads:
    """Heads with two published acceptance lengths, by their ids and values.

    Deviation: the paper gives no accuracies of its heads. Accuracies published for the same heads, measured
    in training and so too low, are raised: level + slope * k is added to the log-odds of every cumulative
    accuracy of head k.

    Raises:
        InputError: no heads have these lengths.
    """
    measured = cumulative(published_accuracies())
    level = log_odds(published_acceptances[0] - 1) - log_odds(measured[0][0])

    def acceptance(slope: float) -> float:
        heads = raise_odds(measured, level, slope)
        return expected_acceptance(estimate_tree(heads, WIDTHS[1]), heads)

    slope = _solve(acceptance, published_acceptances[1], cells)
    return FittedHeads(
        cells, published_acceptances, level, slope, tuple(map(tuple, raise_odds(measured, level, slope)))
    )


def published_accuracies() -> list[list[float]]:
    """`[head][n - 1]`: published top-n accuracy of `MODEL_NAME`'s heads."""
    path = conf_dir() / "reference" / "head_accuracies.csv"
    with path.open(newline="", encoding="utf-8") as file:
        heads = [row for row in csv.DictReader(file) if row["model"] == MODEL_NAME]
    heads.sort(key=lambda row: int(row["head"]))
    return [[float(row[f"top{n}"]) for n in range(1, PRINTED_RANKS + 1)] for row in heads]


def cumulative(accuracies: Accuracies) -> list[list[float]]:
    """Extrapolate cumulative accuracies to `TOP_RANKS` ranks.

    Deviation: no accuracy is published beyond rank 5. The accuracy that a rank adds is extrapolated as a
    power of the rank, with the exponent given by the published ranks 2 and 5.
    """
    sums_by_head = []
    for head in accuracies:
        gains = steps(head)
        power = math.log(gains[1] / gains[-1]) / math.log(len(head) / 2)
        sums = list(head)
        while len(sums) < TOP_RANKS:
            sums.append(sums[-1] + gains[-1] * (len(head) / (len(sums) + 1)) ** power)
        sums_by_head.append(sums)
    return sums_by_head


def raise_odds(accuracies: Accuracies, level: float, slope: float) -> list[list[float]]:
    """Accuracies by rank after adding level + slope * head to the log-odds of the cumulative ones."""
    return [
        steps([1 / (1 + math.exp(-(log_odds(share) + level + slope * head))) for share in shares])
        for head, shares in enumerate(accuracies)
    ]


def steps(sums: Sequence[float]) -> list[float]:
    """Differences of consecutive cumulative values, the first one included."""
    return [sums[0], *(later - earlier for earlier, later in pairwise(sums))]


def log_odds(share: float) -> float:
    """The logit of a probability."""
    return math.log(share / (1 - share))


def _solve(acceptance: Callable[[float], float], published_acceptance: float, cells: Sequence[str]) -> float:
    """Solve `acceptance(slope) == published_acceptance` for an increasing function by bisection."""
    low, high = -STEEPEST_SLOPE, STEEPEST_SLOPE
    if not acceptance(low) < published_acceptance < acceptance(high):
        raise InputError(
            f"match: heads with the acceptance length of {cells[0]} have between {acceptance(low):.3f} and "
            f"{acceptance(high):.3f} at width {WIDTHS[1]}, and {cells[1]} is "
            f"{published_acceptance}; choose another pair"
        )
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if acceptance(middle) < published_acceptance else (low, middle)
    return middle
