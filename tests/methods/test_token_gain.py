"""The reliability factor and what it makes of a draft's probabilities."""

import pytest

from repro.methods.lever.token_gain import LEAST, Reliability, calibrate, candidate_hits
from repro.models.tokens.prefix import Prefix


def test_calibration_by_hand() -> None:
    assert calibrate([0.5, 0.25, 0.05], 1.0) == [0.5, 0.25, 0.05]
    assert calibrate([0.5, 0.25, 0.05], 0.8) == [0.5, 0.25, 0.05], "the draft claims no more than that"
    assert calibrate([0.5, 0.25, 0.05], 0.4) == pytest.approx([0.25, 0.125, 0.025])
    assert calibrate([], 0.5) == []
    assert calibrate([0.0, 0.0], 0.5) == [0.0, 0.0]
    assert sum(calibrate([0.6, 0.4000001], 1.0)) <= 1, "rounding of the draft's does not carry over"


def test_reliability_is_a_moving_average_by_hand() -> None:
    reliability = Reliability(decay=0.5)
    assert reliability.factor == 1.0
    reliability.observe([True, False])
    assert reliability.factor == 0.5
    reliability.observe([False, True])
    assert reliability.factor == 0.625
    reliability.observe([])
    assert reliability.factor == 0.625


def test_reliability_stays_above_zero_and_comes_back() -> None:
    reliability = Reliability()
    reliability.observe([False] * 10_000)
    assert reliability.factor == LEAST
    reliability.observe([True] * 100)
    assert 0.99 < reliability.factor <= 1


def test_hits_are_those_of_the_accepted_path_and_of_the_fallback_token() -> None:
    root = Prefix.of([9, 9])
    first = root.then(1)
    candidates = {root: (1, 2), first: (5, 6), root.then(2): (7,)}
    assert candidate_hits(candidates, root, root.then(3)) == [False]
    assert candidate_hits(candidates, root, root.then(2)) == [True], "a candidate that was not inserted"
    assert candidate_hits(candidates, root, first.then(4)) == [True, False]
    assert candidate_hits(candidates, root, first.then(6).then(8)) == [True, True], "6 was not expanded"
    assert candidate_hits({}, root, first) == []
