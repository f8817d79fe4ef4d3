"""Moving averages by shape, and what a shape that was not seen should take."""

import random
from collections.abc import Iterable
from itertools import pairwise, product

import pytest

from repro.methods.lever.latency_profile import DraftLatency, LatencyProfile, Measurement


def profile(*measured: tuple[int, int, float], **settings: float) -> LatencyProfile:
    return LatencyProfile((Measurement(*m) for m in measured), **settings)


def rises(values: Iterable[float]) -> bool:
    return all(a <= b + 1e-9 for a, b in pairwise(values))


def test_a_shape_that_was_seen_costs_its_moving_average() -> None:
    seen = profile((4, 2, 1.0), decay=0.75)
    assert seen.estimate(4, 2) == 1.0, "the first measurement initialises"
    seen.observe(4, 2, 2.0)
    assert seen.estimate(4, 2) == 1.25
    seen.observe(4, 2, 1.25)
    assert seen.estimate(4, 2) == 1.25
    seen.observe(5, 2, 9.0)
    assert seen.estimate(4, 2) == 1.25, "another shape's is its own"


def test_unseen_shapes_by_hand() -> None:
    """A row costs 2 on average, so that a row to the nearest seen costs a penalty of 0.5, as does a leaf."""
    seen = profile((1, 1, 10.0), (5, 1, 16.0), (11, 1, 30.0), penalty=0.25)
    assert seen.estimate(2, 1) == 11.5 + 0.5
    assert seen.estimate(3, 1) == 13.0 + 1.0
    assert seen.estimate(4, 1) == 14.5 + 0.5
    assert seen.estimate(13, 1) == 30.0 + 2 * 2.0 + 2 * 0.5, "beyond: on the line through all"
    assert seen.estimate(5, 3) == 16.0 + 1.0
    assert seen.estimate(3, 2) == 13.0 + 0.5 + 1.0
    seen.observe(5, 5, 17.2)
    assert seen.estimate(5, 3) == pytest.approx(16.6), "now leaves are known: 0.3 each"
    assert seen.estimate(11, 3) == pytest.approx(30.6)
    assert seen.estimate(5, 6) == pytest.approx(17.5)
    late = profile((4, 2, 10.0), (8, 2, 14.0), penalty=0.25)
    assert late.estimate(2, 2) == 10.0, "smaller than all that was seen: no cheaper"


@pytest.mark.parametrize("seed", range(20))
def test_without_noise_estimates_rise_with_rows_and_leaves_and_are_not_too_low(seed: int) -> None:
    chance = random.Random(seed)
    fixed, row, leaf = chance.random(), chance.random() / 20, chance.random() / 100

    def truth(rows: int, leaves: int) -> float:
        return fixed + row * rows + leaf * leaves

    seen = profile((1, 1, truth(1, 1)), (40, 1, truth(40, 1)), penalty=chance.uniform(0.2, 0.9))
    seen.observe(40, 20, truth(40, 20))
    for _ in range(chance.randint(0, 20)):
        rows = chance.randint(2, 40)
        leaves = chance.randint(1, rows - 1)
        seen.observe(rows, leaves, truth(rows, leaves))
    for n in range(1, 60):
        assert rises(seen.estimate(n, leaves) for leaves in range(1, 40))
        assert rises(seen.estimate(rows, n) for rows in range(1, 60))
    shapes = product(range(1, 60), range(1, 40))
    assert all(seen.estimate(*shape) >= truth(*shape) - 1e-9 for shape in shapes)
    assert seen.estimate(50, 1) > truth(50, 1) + 1e-3 * row, "beyond what was seen it is careful"


def test_the_draft_by_processor() -> None:
    draft = DraftLatency(decay=0.5)
    assert draft.empty
    assert draft.estimate("cpu", 3) == 0.0, "nothing is known"
    draft.observe("cpu", 1, 2.0)
    assert [draft.estimate("cpu", nodes) for nodes in (0, 1, 3)] == [0.0, 2.0, 6.0]
    assert draft.estimate("npu", 3) == 6.0, "not tried: as if one by one"
    draft.observe("npu", 4, 3.0)
    assert [draft.estimate("npu", nodes) for nodes in (2, 4)] == [3.0, 3.0]
    draft.observe("npu", 4, 5.0)
    assert draft.estimate("npu", 4) == 4.0
    assert draft.estimate("cpu", 1) == 2.0
