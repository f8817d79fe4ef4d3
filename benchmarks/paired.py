"""Statistics of paired ratios. Knows nothing of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import geometric_mean
from typing import NamedTuple

DRAWS = 2000
"""Bootstrap draws; more of them do not change a printed digit."""

Strata = Sequence[Sequence[Sequence[float]]]
"""Ratios by dataset, prompt and round."""


class Spread(NamedTuple):
    """Geometric mean of ratios, its 95% confidence interval, and the smallest and largest single ratio.

    There is no interval, `low` and `high` are None, if nothing can be drawn: no prompt of any dataset has
    another prompt or round beside it.
    """

    mean: float
    low: float | None
    high: float | None
    least: float
    most: float
    pairs: int


def spread(strata: Strata) -> Spread:
    """Spread of ratios; the interval is a bootstrap over prompts and their rounds, with datasets fixed.

    With one prompt per dataset the interval covers variation between rounds only.
    """
    every = [ratio for prompts in strata for rounds in prompts for ratio in rounds]
    if len(every) <= len(strata):
        return Spread(mean(strata), None, None, min(every), max(every), len(every))
    chance = Random(0)
    drawn = sorted(mean([_redrawn(prompts, chance) for prompts in strata]) for _ in range(DRAWS))
    low, high = drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS) - 1]
    return Spread(mean(strata), low, high, min(every), max(every), len(every))


def interval_words(spread: Spread) -> str:
    """The interval, or that there is none."""
    return "none" if spread.low is None or spread.high is None else f"{spread.low:.2f} to {spread.high:.2f}"


def mean(strata: Strata) -> float:
    """Geometric mean over rounds, then prompts, then datasets; datasets have equal weight."""
    return geometric_mean([geometric_mean(list(map(geometric_mean, prompts))) for prompts in strata])


def _redrawn(prompts: Sequence[Sequence[float]], chance: Random) -> list[list[float]]:
    return [chance.choices(rounds, k=len(rounds)) for rounds in chance.choices(prompts, k=len(prompts))]
