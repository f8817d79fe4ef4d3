"""How a verification should be divided between two processors: by their speeds alone, or by trying (Ghidorah
sec. III-C).

Has no clock and knows no sessions: seconds come from who measures.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

Measure = Callable[[float], Awaitable[float]]
"""Seconds with a share of the work on the other processor."""

FIRST_STEP = 1 / 8
LAST_STEP = 1 / 64


def by_speed(here: float, there: float) -> float:
    """EdgeNN's share of the other processor: in proportion to both speeds, each measured alone.

    Args:
        here: seconds of all the work on the one processor.
        there: likewise on the other.
    """
    return here / (here + there)


async def adjusted(
    measure: Measure, start: float, first: float = FIRST_STEP, last: float = LAST_STEP
) -> tuple[float, float]:
    """Ghidorah's gradual adjustments: move the share by a step while that is faster, then by half the step.

    Args:
        measure: seconds with a share.
        start: the share to begin with.
        first: the first step.
        last: the least step.

    Returns:
        The best share that was tried, and its seconds.
    """
    best, least, step = start, await measure(start), first
    while step >= last:
        for moved in (best - step, best + step):
            if 0 <= moved <= 1 and (seconds := await measure(moved)) < least:
                best, least = moved, seconds
                break
        else:
            step /= 2
    return best, least


@dataclass(frozen=True)
class ByContext:
    """A share of attention's keys by the number of cached tokens: straight lines between what was tried.

    Attributes:
        contexts: cached tokens, ascending.
        shares: the share at each.
        seconds: of one layer's attention with it.
    """

    contexts: Sequence[int]
    shares: Sequence[float]
    seconds: Sequence[float]

    def at(self, context: int) -> float:
        """The share at a context; beyond the last (before the first) as there."""
        i = bisect_left(self.contexts, context)
        if i == 0:
            return self.shares[0]
        if i == len(self.contexts):
            return self.shares[-1]
        (x0, x1), (y0, y1) = self.contexts[i - 1 : i + 1], self.shares[i - 1 : i + 1]
        return y0 + (y1 - y0) * (context - x0) / (x1 - x0)
