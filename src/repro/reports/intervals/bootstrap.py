"""95% bootstrap intervals of figures that are ratios of totals over prompts.

Owns the resampling. Must not know what a figure means, nor where its totals come from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple
from zlib import crc32

from repro.libraries import Array, np
from repro.records.record import FEWEST

RESAMPLES = 10_000
SEED = 0
Interval = tuple[float, float]


class Total(NamedTuple):
    """What one prompt adds to the two sums of a figure, which is `above` over `below`.

    `rounds` has what each of several rounds of it adds, on a wall clock that repeats them; they are resampled
    within the prompt. Without any there is one.
    """

    above: float
    below: float
    rounds: tuple[tuple[float, float], ...] = ()


Totals = Mapping[str, Total]
"""The totals of a figure by prompt."""


def figure(totals: Totals) -> float | None:
    """The figure of all prompts: the sum of `above` over the sum of `below`; `None` if the latter is 0."""
    below = sum(total.below for total in totals.values())
    return sum(total.above for total in totals.values()) / below if below else None


def interval(totals: Totals) -> Interval | None:
    """The 95% interval of a figure over prompts (percentiles); `None` with fewer than `FEWEST` prompts."""
    figures = resample(totals)
    return None if figures is None else ends(figures)


def paired_interval(ours: Totals, other: Totals, compare: Literal["ratio", "difference"]) -> Interval | None:
    """The 95% interval of one figure over, or less, another, resampled over the same prompts.

    `None` if the prompts are not the same, or fewer than `FEWEST`.
    """
    first, second = resample(ours), resample(other)
    if ours.keys() != other.keys() or first is None or second is None:
        return None
    if compare == "difference":
        return ends(first - second)
    with np.errstate(divide="ignore", invalid="ignore"):
        return ends(first / second)


def resample(totals: Totals, source: str = "", among: Collection[str] | None = None) -> Array | None:
    """The figure of `RESAMPLES` draws of the prompts with replacement; `None` with fewer than `FEWEST`.

    Figures over the same prompts of the same source (the digest of a dataset) get the same draws, so that
    they can be compared draw by draw; other prompts are drawn independently.

    Args:
        totals: of the figure, by prompt.
        source: of the prompts.
        among: the prompts that are drawn, of which the figure has some or all (default): figures over
            different parts of a source share the draws of what they have in common only if all are drawn
            together.
    """
    if len(totals) < FEWEST:
        return None
    prompts = tuple(sorted(totals if among is None else among))
    none = Total(0.0, 0.0)
    above, below = np.zeros(RESAMPLES), np.zeros(RESAMPLES)
    for prompt, counts in zip(prompts, _counts(source, prompts), strict=True):
        # One prompt after the other: the order in a product of matrices depends on the processor.
        total = totals.get(prompt, none)
        if len(total.rounds) < 2:
            above += counts * total.above
            below += counts * total.below
            continue
        for times, (over, under) in zip(
            _round_counts(source, prompt, counts, len(total.rounds)), total.rounds, strict=True
        ):
            above += times * over
            below += times * under
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(above / below)


def weights(seeds: Sequence[int]) -> Array | None:
    """What each of some figures weighs in each draw if their seeds are drawn with replacement as well.

    Args:
        seeds: the seed of each figure.

    Returns:
        Weights that add up to 1 in each draw, [figures, `RESAMPLES`]; `None` if there is one seed.
    """
    if len(names := tuple(sorted({str(seed) for seed in seeds}))) < 2:
        return None
    each = _counts("seeds", names)[[names.index(str(seed)) for seed in seeds]]
    return np.asarray(each / each.sum(0))


@lru_cache(maxsize=32)
def _counts(source: str, prompts: tuple[str, ...]) -> Array:
    """How often each prompt is in each draw: [prompts, `RESAMPLES`]."""
    generator = np.random.default_rng([SEED, crc32("\n".join((source, *prompts)).encode())])
    shares = np.full(len(prompts), 1 / len(prompts))
    counts = generator.multinomial(len(prompts), shares, size=RESAMPLES)
    return np.ascontiguousarray(counts.T, dtype=np.float64)


def _round_counts(source: str, prompt: str, counts: Array, rounds: int) -> Array:
    """How often each round of a prompt is in each draw, which draws as many as there are each time that it
    draws the prompt: [rounds, `RESAMPLES`].
    """
    generator = np.random.default_rng([SEED, crc32("\n".join(("rounds", source, prompt)).encode())])
    round_counts = generator.multinomial(counts.astype(np.int64) * rounds, np.full(rounds, 1 / rounds))
    return np.ascontiguousarray(round_counts.T, dtype=np.float64)


def ends(figures: Array) -> Interval | None:
    """The 2.5th and 97.5th percentile of resampled figures; `None` if none is finite."""
    finite = figures[np.isfinite(figures)]
    if not finite.size:
        return None
    low, high = np.percentile(finite, [2.5, 97.5])
    return float(low), float(high)
