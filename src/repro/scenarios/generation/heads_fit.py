"""What brings Medusa heads to two published acceptance lengths: accuracies fitted to Ghidorah's Table I.

Owns the form of the fit and its solution. Must not know records, sweeps or how heads draw their guesses.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.registry import unknown
from repro.methods.ghidorah.verification_tree import Accuracies, expected_acceptance, grown
from repro.models.drafting.head_ranks import TOP
from repro.reports.reference.reference import PublishedCell, find, load_cells

METRIC = "acceptance_length"
WIDTHS = (2, 4)
"""Of the trees whose acceptance is fitted, in the order of the ids."""

TREES = "ghidorah.table1.mt_bench"
"""The row on which Ghidorah's trees are found, whatever dataset they are used on (sec. IV-B)."""

MODEL = "vicuna-7b-v1.3"
STEEPEST = 12.0
"""Of slopes that are tried: a head's odds then fall or rise by e^12 from one to the next."""

PRINTED = 5
"""Ranks whose accuracies are published."""


@dataclass(frozen=True)
class FittedHeads:
    """Heads whose estimated trees of width 2 and 4 have the published acceptance lengths.

    Attributes:
        cells: the ids of both.
        published: their values, tokens a verification.
        level: what all heads' log-odds are raised by.
        slope: what head k's log-odds are raised by k times beside.
        accuracies: `[head][rank]`: how often that rank is the target's own token.
    """

    cells: tuple[str, ...]
    published: tuple[float, ...]
    level: float
    slope: float
    accuracies: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class HeadMatch:
    """How a draft's heads are brought to a row of Table I.

    Attributes:
        heads: what their guesses follow.
        trees: what the search for trees is told of them: MT-Bench's row (Ghidorah sec. IV-B).
    """

    heads: FittedHeads
    trees: FittedHeads

    @property
    def cells(self) -> tuple[str, ...]:
        """Ids of all published values that were fitted."""
        return tuple(dict.fromkeys((*self.heads.cells, *self.trees.cells)))


def head_match(names: Sequence[object]) -> HeadMatch:
    """The match that two ids ask for: one dataset's acceptance lengths at width 2 and at width 4.

    Raises:
        InputError: they are no such pair (with near misses), or no heads of the form have these values.
    """
    return HeadMatch(fitted(tuple(map(str, names))), fitted(tuple(f"{TREES}.width{w}" for w in WIDTHS)))


@cache
def fitted(names: tuple[str, ...]) -> FittedHeads:
    """Heads for two published values.

    Deviation: the paper gives no head's accuracy. Published ones of the same heads, of their training and so
    too low, are raised: the log-odds of every cumulative accuracy of head k by level + slope * k.
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
    """`[head][n - 1]`: how often the right token is among the first n ranks, as it is published."""
    path = path or conf_dir() / "reference" / "head_accuracies.csv"
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if model not in (known := {row["model"] for row in rows}):
        raise InputError(unknown("model with published head accuracies", model, known))
    heads = sorted((row for row in rows if row["model"] == model), key=lambda row: int(row["head"]))
    return [[float(row[f"top{n}"]) for n in range(1, PRINTED + 1)] for row in heads]


def cumulative(heads: Accuracies, ranks: int = TOP) -> list[list[float]]:
    """Cumulative accuracies continued to `ranks`.

    Deviation: nothing is published beyond the fifth rank. What a rank adds goes on falling as a power of the
    rank, the one that leads from the published second to the published fifth.
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
    """Accuracies by rank, of cumulative ones whose log-odds are raised by level + slope * head."""
    return [
        steps([1 / (1 + math.exp(-(log_odds(share) + level + slope * head))) for share in shares])
        for head, shares in enumerate(heads)
    ]


def steps(sums: Sequence[float]) -> list[float]:
    """What each rank adds."""
    return [sums[0], *(after - before for before, after in pairwise(sums))]


def log_odds(share: float) -> float:
    """The logarithm of a probability's odds."""
    return math.log(share / (1 - share))


def _pair(names: tuple[str, ...]) -> list[PublishedCell]:
    """The published cells of a pair of ids, of one row and of the widths 2 and 4."""
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
    """The slope at which a growing function is as wanted, by halving."""
    low, high = -STEEPEST, STEEPEST
    if not reached(low) < wanted < reached(high):
        raise InputError(
            f"match: heads with the acceptance length of {names[0]} have between {reached(low):.3f} and "
            f"{reached(high):.3f} at width {WIDTHS[1]}, and {names[1]} is {wanted}; choose another pair"
        )
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if reached(middle) < wanted else (low, middle)
    return middle
