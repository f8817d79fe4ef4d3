"""Draws of the bootstrap: the same in every process, of as many prompts as there are."""

import pytest

from repro.reports.intervals import bootstrap


def test_draws_are_those_of_every_process() -> None:
    prompts = tuple(f"p/{i}" for i in range(7))
    first = bootstrap._counts("a", prompts)
    bootstrap._counts.cache_clear()
    assert (bootstrap._counts("a", prompts) == first).all(), "a table can be made again"


def test_a_draw_has_as_many_prompts_as_there_are() -> None:
    counts = bootstrap._counts("b", tuple(f"p/{i}" for i in range(7)))
    assert counts.shape == (7, bootstrap.RESAMPLES)
    assert (counts.sum(0) == 7).all()
    assert counts.mean(1) == pytest.approx([1.0] * 7, abs=0.05)
    # Each prompt is left out of a draw with probability (1 - 1/7) ** 7.
    assert (counts == 0).mean() == pytest.approx((6 / 7) ** 7, abs=0.01)
