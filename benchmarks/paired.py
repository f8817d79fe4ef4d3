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

    There is no interval, `low` and `high` are None, if a dataset has a single pair, which tells no spread.
    """

    mean: float
    low: float | None
    high: float | None
    least: float
    most: float
    pairs: int

    @property
    def interval(self) -> str:
        """The confidence interval in words; `-` if there is none."""
        return "-" if self.low is None or self.high is None else f"{self.low:.2f} to {self.high:.2f}"


def spread(strata: Strata) -> Spread:
    """Spread of ratios; the interval is a bootstrap over prompts and their rounds, with datasets fixed.

    With one prompt per dataset the interval covers variation between rounds only.
    """
    every = [ratio for prompts in strata for rounds in prompts for ratio in rounds]
    if min(sum(map(len, prompts)) for prompts in strata) < 2:
        return Spread(mean(strata), None, None, min(every), max(every), len(every))
    chance = Random(0)
    drawn = sorted(mean([_redrawn(prompts, chance) for prompts in strata]) for _ in range(DRAWS))
    low, high = drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS) - 1]
    return Spread(mean(strata), low, high, min(every), max(every), len(every))


def mean(strata: Strata) -> float:
    """Geometric mean over rounds, then prompts, then datasets; datasets have equal weight."""
    return geometric_mean([geometric_mean(list(map(geometric_mean, prompts))) for prompts in strata])


def _redrawn(prompts: Sequence[Sequence[float]], chance: Random) -> list[list[float]]:
    return [chance.choices(rounds, k=len(rounds)) for rounds in chance.choices(prompts, k=len(prompts))]
