"""Division of a verification between two processors, by their speeds or by search (Ghidorah sec. III-C).

Has no clock; callers measure. Must not know sessions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

Measure = Callable[[float], Awaitable[float]]
"""Measures the seconds with a share of the work on the other processor."""

FIRST_STEP = 1 / 8
LAST_STEP = 1 / 64


def by_speed(main_seconds: float, other_seconds: float) -> float:
    """The other processor's share at first, and EdgeNN's: proportional to the speeds, each measured alone.

    Args:
        main_seconds: seconds of all the work on the main processor.
        other_seconds: seconds of all the work on the other processor.
    """
    return main_seconds / (main_seconds + other_seconds)


async def adjust(
    measure: Measure, start: float, first_step: float = FIRST_STEP, last_step: float = LAST_STEP
) -> tuple[float, float]:
    """Ghidorah's gradual adjustment: move the share by a step while that is faster, then halve the step.

    Args:
        measure: measures the seconds with a share.
        start: initial share.
        first_step: initial step.
        last_step: minimum step.

    Returns:
        The best measured share, and its seconds.
    """
    best_share, least_seconds, step = start, await measure(start), first_step
    while step >= last_step:
        for share in (best_share - step, best_share + step):
            if 0 <= share <= 1 and (seconds := await measure(share)) < least_seconds:
                best_share, least_seconds = share, seconds
                break
        else:
            step /= 2
    return best_share, least_seconds


@dataclass(frozen=True)
class ByContext:
    """Share of the cached keys by context length, linearly interpolated between measurements.

    Attributes:
        contexts: context lengths in cached tokens, ascending.
        shares: share at each context.
        seconds: seconds of one layer's attention with that share.
    """

    contexts: Sequence[int]
    shares: Sequence[float]
    seconds: Sequence[float]

    def at(self, context_length: int) -> float:
        """The share at a context, constant outside the measured range."""
        i = bisect_left(self.contexts, context_length)
        if i == 0:
            return self.shares[0]
        if i == len(self.contexts):
            return self.shares[-1]
        (x0, x1), (y0, y1) = self.contexts[i - 1 : i + 1], self.shares[i - 1 : i + 1]
        return y0 + (y1 - y0) * (context_length - x0) / (x1 - x0)
