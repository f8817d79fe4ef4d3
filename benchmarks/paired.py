"""Ratios of what was measured in pairs, and how far they spread. Knows nothing of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import geometric_mean
from typing import NamedTuple

DRAWS = 2000
"""Of a bootstrap; more of them move a printed digit no more."""

Strata = Sequence[Sequence[Sequence[float]]]
"""Ratios by dataset, prompt and round."""


class Spread(NamedTuple):
    """A geometric mean of ratios, its 95% interval, and the least and the most single ratio."""

    mean: float
    low: float
    high: float
    least: float
    most: float
    pairs: int


def spread(strata: Strata) -> Spread:
    """How far ratios spread; the interval is a bootstrap over prompts and their rounds, datasets fixed.

    With one prompt a dataset the interval knows of rounds alone.
    """
    every = [ratio for prompts in strata for rounds in prompts for ratio in rounds]
    chance = Random(0)
    drawn = sorted(mean([_redrawn(prompts, chance) for prompts in strata]) for _ in range(DRAWS))
    low, high = drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS) - 1]
    return Spread(mean(strata), low, high, min(every), max(every), len(every))


def mean(strata: Strata) -> float:
    """The geometric mean over datasets of that over prompts of that over rounds; datasets count alike."""
    return geometric_mean([geometric_mean(list(map(geometric_mean, prompts))) for prompts in strata])


def _redrawn(prompts: Sequence[Sequence[float]], chance: Random) -> list[list[float]]:
    return [chance.choices(rounds, k=len(rounds)) for rounds in chance.choices(prompts, k=len(prompts))]
