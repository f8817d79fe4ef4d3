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
    """What one prompt adds to the two sums of a figure, which is `numerator` over `denominator`.

    `rounds` has what each of several rounds of it adds, on a wall clock that repeats them; they are resampled
    within the prompt. Without any there is one.
    """

    numerator: float
    denominator: float
    rounds: tuple[tuple[float, float], ...] = ()


Totals = Mapping[str, Total]
"""The totals of a figure by prompt."""


def figure(totals: Totals) -> float | None:
    """The figure of all prompts, sum of `numerator` over sum of `denominator`; `None` if the latter is 0."""
    denominator = sum(total.denominator for total in totals.values())
    return sum(total.numerator for total in totals.values()) / denominator if denominator else None


def interval(totals: Totals) -> Interval | None:
    """The 95% interval of a figure over prompts (percentiles); `None` with fewer than `FEWEST` prompts."""
    figures = resample(totals)
    return None if figures is None else ends(figures)


def paired_interval(ours: Totals, other: Totals, compare: Literal["ratio", "difference"]) -> Interval | None:
    """The 95% interval of one figure over, or less, another, resampled over the same prompts.

    `None` if the prompts are not the same, or fewer than `FEWEST`.
    """
    draws, other_draws = resample(ours), resample(other)
    if ours.keys() != other.keys() or draws is None or other_draws is None:
        return None
    if compare == "difference":
        return ends(draws - other_draws)
    with np.errstate(divide="ignore", invalid="ignore"):
        return ends(draws / other_draws)


def resample(totals: Totals, dataset: str = "", all_prompts: Collection[str] | None = None) -> Array | None:
    """The figure of `RESAMPLES` draws of the prompts with replacement; `None` with fewer than `FEWEST`.

    Figures over the same prompts of the same source (the digest of a dataset) get the same draws, so that
    they can be compared draw by draw; other prompts are drawn independently.

    Args:
        totals: of the figure, by prompt.
        dataset: of the prompts.
        all_prompts: the prompts that are drawn, of which the figure has some or all (default): figures over
            different parts of a source share the draws of what they have in common only if all are drawn
            together.
    """
    if len(totals) < FEWEST:
        return None
    prompts = tuple(sorted(totals if all_prompts is None else all_prompts))
    empty_total = Total(0.0, 0.0)
    numerators, denominators = np.zeros(RESAMPLES), np.zeros(RESAMPLES)
    for prompt, counts in zip(prompts, _counts(dataset, prompts), strict=True):
        # One prompt after the other: the order in a product of matrices depends on the processor.
        total = totals.get(prompt, empty_total)
        if len(total.rounds) < 2:
            numerators += counts * total.numerator
            denominators += counts * total.denominator
            continue
        for count, (numerator, denominator) in zip(
            _round_counts(dataset, prompt, counts, len(total.rounds)), total.rounds, strict=True
        ):
            numerators += count * numerator
            denominators += count * denominator
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(numerators / denominators)


def weights(seeds: Sequence[int]) -> Array | None:
    """What each of some figures weighs in each draw if their seeds are drawn with replacement as well.

    Args:
        seeds: the seed of each figure.

    Returns:
        Weights that add up to 1 in each draw, [figures, `RESAMPLES`]; `None` if there is one seed.
    """
    if len(names := tuple(sorted({str(seed) for seed in seeds}))) < 2:
        return None
    seed_counts = _counts("seeds", names)[[names.index(str(seed)) for seed in seeds]]
    return np.asarray(seed_counts / seed_counts.sum(0))


@lru_cache(maxsize=32)
def _counts(dataset: str, prompts: tuple[str, ...]) -> Array:
    """How often each prompt is in each draw: [prompts, `RESAMPLES`]."""
    generator = np.random.default_rng([SEED, crc32("\n".join((dataset, *prompts)).encode())])
    shares = np.full(len(prompts), 1 / len(prompts))
    counts = generator.multinomial(len(prompts), shares, size=RESAMPLES)
    return np.ascontiguousarray(counts.T, dtype=np.float64)


def _round_counts(dataset: str, prompt: str, counts: Array, rounds: int) -> Array:
    """How often each round of a prompt is in each draw, which draws as many as there are each time that it
    draws the prompt: [rounds, `RESAMPLES`].
    """
    generator = np.random.default_rng([SEED, crc32("\n".join(("rounds", dataset, prompt)).encode())])
    round_counts = generator.multinomial(counts.astype(np.int64) * rounds, np.full(rounds, 1 / rounds))
    return np.ascontiguousarray(round_counts.T, dtype=np.float64)


def ends(figures: Array) -> Interval | None:
    """The 2.5th and 97.5th percentile of resampled figures; `None` if none is finite."""
    finite_figures = figures[np.isfinite(figures)]
    if not finite_figures.size:
        return None
    low, high = np.percentile(finite_figures, [2.5, 97.5])
    return float(low), float(high)
