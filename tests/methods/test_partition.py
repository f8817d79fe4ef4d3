"""The search for a division finds the share at which both processors are done at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.methods.ghidorah.contention import LAST_STEP, ByContext, adjust, by_speed


def balance(here: float, there: float) -> Callable[[float], Awaitable[float]]:
    async def measure(share: float) -> float:
        return max(here * (1 - share), there * share)

    return measure


def test_by_speed_is_where_both_would_be_done_at_once() -> None:
    share = by_speed(3.0, 1.0)
    assert share == 0.75
    assert 3.0 * (1 - share) == 1.0 * share


@given(here=st.floats(0.1, 10), there=st.floats(0.1, 10), start=st.floats(0, 1))
def test_adjusting_ends_within_two_last_steps_of_the_best_share(
    here: float, there: float, start: float
) -> None:
    share, seconds = asyncio.run(_run(balance(here, there), start))
    assert abs(share - here / (here + there)) <= 2 * LAST_STEP
    assert seconds == pytest.approx(max(here * (1 - share), there * share))


async def _run(measure: Callable[[float], Awaitable[float]], start: float) -> tuple[float, float]:
    return await adjust(measure, start)


def test_shares_between_contexts_lie_between_theirs() -> None:
    table = ByContext((100, 300), (0.0, 0.5), (1.0, 2.0))
    assert [table.at(context) for context in (50, 100, 200, 300, 900)] == [0.0, 0.0, 0.25, 0.5, 0.5]
