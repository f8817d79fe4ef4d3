"""95% bootstrap intervals of figures that are ratios of totals over prompts.

Owns the resampling. Must not know what a figure means, nor where its totals come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from repro.core.late import late

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = late("numpy")

RESAMPLES = 10_000
SEED = 0
FEWEST = 5
"""Prompts below which there is no interval: resampling so few says little about others."""

Interval = tuple[float, float]


class Total(NamedTuple):
    """What one prompt adds to the two sums of a figure, which is `above` over `below`."""

    above: float
    below: float


Totals = Mapping[str, Total]
"""The totals of a figure by prompt."""


def figure(totals: Totals) -> float | None:
    """The figure of all prompts: the sum of `above` over the sum of `below`; `None` if the latter is 0."""
    below = sum(total.below for total in totals.values())
    return sum(total.above for total in totals.values()) / below if below else None


def interval(totals: Totals) -> Interval | None:
    """The 95% interval of a figure over prompts (percentiles); `None` with fewer than `FEWEST` prompts."""
    return _ends(_resampled(totals, sorted(totals))) if len(totals) >= FEWEST else None


def paired(ours: Totals, other: Totals, compare: Literal["ratio", "difference"]) -> Interval | None:
    """The 95% interval of one figure over, or less, another, resampled over the same prompts.

    `None` if the prompts are not the same, or fewer than `FEWEST`.
    """
    if ours.keys() != other.keys() or len(ours) < FEWEST:
        return None
    prompts = sorted(ours)
    one, two = _resampled(ours, prompts), _resampled(other, prompts)
    if compare == "difference":
        return _ends(one - two)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _ends(one / two)


def _resampled(totals: Totals, prompts: list[str]) -> NDArray[np.float64]:
    """The figure of `RESAMPLES` draws of the prompts with replacement; the same draws at every call."""
    drawn = np.random.default_rng(SEED).integers(len(prompts), size=(RESAMPLES, len(prompts)))
    sums = np.array([totals[prompt] for prompt in prompts])[drawn].sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(sums[:, 0] / sums[:, 1])


def _ends(figures: NDArray[np.float64]) -> Interval | None:
    finite = figures[np.isfinite(figures)]
    if not finite.size:
        return None
    low, high = np.percentile(finite, [2.5, 97.5])
    return float(low), float(high)
