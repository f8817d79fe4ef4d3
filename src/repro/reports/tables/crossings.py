"""Where curves of a table cross, in sentences: which is first, and from where on one overtakes another.

Owns the arithmetic and the words. Curves are straight between their points. Must not know records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from repro.libraries import Array, np

X_STEPS = 2000
"""Places between the ends of the x axis at which the first curve is looked up."""

END_SHARES = (0.025, 0.975)
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
    for curve, rival in pairs:
        yield _ahead(x, curve, rival)


def _leaders(x: SampledCurve, curves: Sequence[SampledCurve]) -> str:
    xs = np.linspace(x.values[0], x.values[-1], X_STEPS)
    best_indices = np.argmax([np.interp(xs, x.values, curve.values) for curve in curves], axis=0)
    starts = [0, *(np.flatnonzero(np.diff(best_indices)) + 1)]
    leaders = [(curves[best_indices[start]], float(xs[start])) for start in starts]
    clauses = [f"{leaders[0][0].name} is first" + (" throughout" if len(leaders) == 1 else "")]
    clauses += [
        f"{overtaker.name} from {_crossing(x, overtaken, overtaker, x_value)} on"
        for (overtaken, _), (overtaker, x_value) in pairwise(leaders)
    ]
    return ", ".join(clauses)


def _ahead(x: SampledCurve, curve: SampledCurve, rival: SampledCurve) -> str:
    """Who is ahead of whom, and at which x that changes."""
    lead = curve.values - rival.values
    rises = _rises(x.values[:, None], lead[:, None])[:, 0], _rises(x.values[:, None], -lead[:, None])[:, 0]
    changes = [
        (float(point), *names)
        for points, names in zip(rises, ((rival, curve), (curve, rival)), strict=True)
        for point in points[np.isfinite(points)]
    ]
    if changes:
        return ", ".join(
            f"{overtaker.name} overtakes {overtaken.name} at {_crossing(x, overtaken, overtaker, point)}"
            for point, overtaken, overtaker in sorted(changes, key=lambda change: change[0])
        )
    winner, loser = (curve, rival) if lead[0] > 0 else (rival, curve)
    gains = 100 * (winner.values / loser.values - 1)
    low_gains = np.quantile(winner.draws - loser.draws, END_SHARES[0], axis=1)
    return (
        f"{winner.name} is ahead of {loser.name} throughout, by {gains.min():.0f} to {gains.max():.0f}% "
        f"(beyond chance at {int((low_gains > 0).sum())} of {len(low_gains)} points)"
    )


def _crossing(x: SampledCurve, overtaken: SampledCurve, overtaker: SampledCurve, point: float) -> str:
    """The x at which a curve overtakes another, with its interval: of each draw the nearest such x."""
    lead = overtaker.draws - overtaken.draws
    crossings = _rises(x.draws, lead)
    no_crossing = np.where(lead[-1] > 0, -np.inf, np.inf)
    nearest_index = np.nanargmin(np.where(np.isnan(crossings), np.inf, np.abs(crossings - point)), axis=0)
    points = np.where(
        np.isnan(crossings).all(axis=0),
        no_crossing,
        np.take_along_axis(crossings, nearest_index[None], axis=0)[0],
    )
    low, high = (float(np.sort(points)[round(end * (len(points) - 1))]) for end in END_SHARES)
    low_text = f"below {x.values[0]:.0f}" if low == -np.inf else f"{low:.0f}"
    high_text = f"above {x.values[-1]:.0f}" if high == np.inf else f"{high:.0f}"
    return f"{x.name.lower()} {point:.0f}% [{low_text}, {high_text}]"


def _rises(x: Array, lead: Array) -> Array:
    """Where a lead rises above 0 in each segment, NaN where it does not: [segments, draws]."""
    lead_before, lead_after = lead[:-1], lead[1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = -lead_before / (lead_after - lead_before)
    return np.where((lead_before <= 0) & (lead_after > 0), x[:-1] + share * (x[1:] - x[:-1]), np.nan)
