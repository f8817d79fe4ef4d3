"""Statistics of what several arms did on the same prompts in rounds. Knows nothing of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, fsum, log
from random import Random
from statistics import median
from typing import NamedTuple, TypeVar

DRAWS = 10_000
"""Resamples of an interval."""

T = TypeVar("T")
Interval = tuple[float, float]
Strata = Sequence[Sequence[T]]
"""Prompts by dataset."""


class Paces(NamedTuple):
    """An arm's answers to one prompt.

    Attributes:
        tokens: decoded ones of an answer, the mean over rounds.
        rounds: seconds a token by number of the round.
    """

    tokens: float
    rounds: Mapping[int, float]

    @property
    def pace(self) -> float:
        """Seconds a token, the median over rounds."""
        return median(self.rounds.values())


def speed(strata: Strata[Paces]) -> float:
    """Tokens a second: totals over totals, of medians over rounds."""
    prompts = [prompt for stratum in strata for prompt in stratum]
    return fsum(p.tokens for p in prompts) / fsum(p.tokens * p.pace for p in prompts)


def ratio_of(arm: Paces, base: Paces) -> float | None:
    """How many times faster an arm is on a prompt: the median over the rounds that both have."""
    both = arm.rounds.keys() & base.rounds.keys()
    return median(base.rounds[number] / arm.rounds[number] for number in both) if both else None


def mean_ratio(strata: Strata[float]) -> float:
    """Geometric mean over prompts, then over datasets, which have equal weight."""
    means = [fsum(map(log, ratios)) / len(ratios) for ratios in strata]
    return exp(fsum(means) / len(means))


def interval(strata: Strata[T], figure: Callable[[Strata[T]], float]) -> Interval | None:
    """95% interval of a figure, by prompts drawn again within datasets; None if one has a single prompt."""
    if min(map(len, strata)) < 2:
        return None
    chance = Random(0)
    drawn = sorted(figure([chance.choices(own, k=len(own)) for own in strata]) for _ in range(DRAWS))
    return drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS) - 1]


def ends(interval: Interval | None) -> str:
    """An interval in words; `-` if there is none."""
    return "-" if interval is None else " to ".join(f"{end:.3g}" for end in interval)
