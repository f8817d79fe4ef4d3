"""Where curves of a table cross, in sentences: which is first, and from where on one overtakes another.

Owns the arithmetic and the words. Curves are straight between their points. Must not know records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from repro.libraries import Array, np

STEPS = 2000
"""Places between the ends of the x axis at which the first curve is looked up."""

ENDS = (0.025, 0.975)
"""Shares of draws below an interval's ends."""


@dataclass(frozen=True)
class SampledCurve:
    """A curve over x: its values at the points, and each draw's.

    Attributes:
        name: as it is printed.
        values: [points].
        draws: the values in each draw, [points, draws].
    """

    name: str
    values: Array
    draws: Array


def sentences(
    x: SampledCurve, curves: Sequence[SampledCurve], pairs: Sequence[tuple[SampledCurve, SampledCurve]]
) -> Iterator[str]:
    """Which curve is first where, and of each pair who is ahead.

    Args:
        x: what the curves are over, in percent; its values rise.
        curves: those of which one is first, more being better.
        pairs: curves that are compared with each other.
    """
    yield _leaders(x, curves)
    for first, second in pairs:
        yield _ahead(x, first, second)


def _leaders(x: SampledCurve, curves: Sequence[SampledCurve]) -> str:
    xs = np.linspace(x.values[0], x.values[-1], STEPS)
    best = np.argmax([np.interp(xs, x.values, curve.values) for curve in curves], axis=0)
    starts = [0, *(np.flatnonzero(np.diff(best)) + 1)]
    leaders = [(curves[best[start]], float(xs[start])) for start in starts]
    clauses = [f"{leaders[0][0].name} is first" + (" throughout" if len(leaders) == 1 else "")]
    clauses += [
        f"{after.name} from {_crossing(x, before, after, x_value)} on"
        for (before, _), (after, x_value) in pairwise(leaders)
    ]
    return ", ".join(clauses)


def _ahead(x: SampledCurve, first: SampledCurve, second: SampledCurve) -> str:
    """Who is ahead of whom, and at which x that changes."""
    lead = first.values - second.values
    rises = _rises(x.values[:, None], lead[:, None])[:, 0], _rises(x.values[:, None], -lead[:, None])[:, 0]
    changes = [
        (float(point), *names)
        for points, names in zip(rises, ((second, first), (first, second)), strict=True)
        for point in points[np.isfinite(points)]
    ]
    if changes:
        return ", ".join(
            f"{after.name} overtakes {before.name} at {_crossing(x, before, after, point)}"
            for point, before, after in sorted(changes, key=lambda change: change[0])
        )
    winner, loser = (first, second) if lead[0] > 0 else (second, first)
    gains = 100 * (winner.values / loser.values - 1)
    low = np.quantile(winner.draws - loser.draws, ENDS[0], axis=1)
    return (
        f"{winner.name} is ahead of {loser.name} throughout, by {gains.min():.0f} to {gains.max():.0f}% "
        f"(beyond chance at {int((low > 0).sum())} of {len(low)} points)"
    )


def _crossing(x: SampledCurve, before: SampledCurve, after: SampledCurve, point: float) -> str:
    """The x at which a curve overtakes another, with its interval: of each draw the nearest such x."""
    lead = after.draws - before.draws
    crossings = _rises(x.draws, lead)
    never = np.where(lead[-1] > 0, -np.inf, np.inf)
    nearest = np.nanargmin(np.where(np.isnan(crossings), np.inf, np.abs(crossings - point)), axis=0)
    points = np.where(
        np.isnan(crossings).all(axis=0), never, np.take_along_axis(crossings, nearest[None], axis=0)[0]
    )
    low, high = (float(np.sort(points)[round(end * (len(points) - 1))]) for end in ENDS)
    first = f"below {x.values[0]:.0f}" if low == -np.inf else f"{low:.0f}"
    last = f"above {x.values[-1]:.0f}" if high == np.inf else f"{high:.0f}"
    return f"{x.name.lower()} {point:.0f}% [{first}, {last}]"


def _rises(x: Array, lead: Array) -> Array:
    """Where a lead rises above 0 in each segment, NaN where it does not: [segments, draws]."""
    before, after = lead[:-1], lead[1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = -before / (after - before)
    return np.where((before <= 0) & (after > 0), x[:-1] + share * (x[1:] - x[:-1]), np.nan)
