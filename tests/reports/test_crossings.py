"""Where curves cross: at the place that arithmetic gives, with the draws' interval, in words."""

from __future__ import annotations

import numpy as np
import pytest

from repro.reports.tables.crossings import SampledCurve, sentences

PLACES = np.array([50.0, 60.0, 70.0, 80.0, 90.0])
SHIFTS = np.linspace(-20, 20, 1001)
"""Of each draw; 95% of them lie within 19."""


def curve(name: str, values: np.ndarray, drawn: np.ndarray | None = None) -> SampledCurve:
    each = values[:, None].repeat(len(SHIFTS), axis=1) if drawn is None else drawn
    return SampledCurve(name, values, each)


def rising(*crosses: float) -> SampledCurve:
    """A straight line that is 1 at the first place, and at one of the others in each draw in turn."""
    drawn = [crosses[1:][i % len(crosses[1:])] if crosses[1:] else crosses[0] for i in range(len(SHIFTS))]
    lines = [1 + (PLACES - place) / 100 for place in (crosses[0], *drawn)]
    return curve("Rising", lines[0], np.stack(lines[1:], axis=1))


X = curve("Agreement", PLACES)
SHIFTED = SampledCurve("Agreement", PLACES, PLACES[:, None] + SHIFTS)
FLAT = curve("Flat", np.ones(5))


@pytest.mark.parametrize(
    ("x", "steep", "place"),
    [
        (X, rising(70, *(70 + SHIFTS)), "agreement 70% [51, 89]"),
        (SHIFTED, rising(70), "agreement 70% [51, 89]"),  # a crossing moves with the draws' agreement
        (X, rising(52, 40, 52), "agreement 52% [below 50, 52]"),  # half of the draws never have it behind
        (X, rising(88, 99, 88), "agreement 88% [88, above 90]"),  # half of the draws never have it ahead
    ],
)
def test_a_crossing_has_the_draws_interval(x: SampledCurve, steep: SampledCurve, place: str) -> None:
    first, ahead = sentences(x, [FLAT, steep], [(steep, FLAT)])
    assert first == f"Flat is first, Rising from {place} on"
    assert ahead == f"Rising overtakes Flat at {place}"


def test_curves_that_cross_twice_say_both() -> None:
    """From 0.5 to 2 it is 1 after a third of the way, and back after two thirds."""
    bump = curve("Bump", np.array([0.5, 2.0, 2.0, 2.0, 0.5]))
    _, ahead = sentences(X, [FLAT, bump], [(bump, FLAT)])
    up, down = "agreement 53% [53, 53]", "agreement 87% [87, 87]"
    assert ahead == f"Bump overtakes Flat at {up}, Flat overtakes Bump at {down}"


def test_who_is_ahead_throughout_is_said_with_how_far_and_how_surely() -> None:
    """By 1.1 to 1.5 times; at the first point a third of the draws has it behind."""
    values = np.array([1.1, 1.2, 1.3, 1.4, 1.5])
    drawn = values[:, None].repeat(len(SHIFTS), axis=1)
    drawn[0, : len(SHIFTS) // 3] = 0.9
    leader = curve("Ahead", values, drawn)
    first, ahead = sentences(X, [leader, FLAT], [(FLAT, leader)])
    assert first == "Ahead is first throughout"
    assert ahead == "Ahead is ahead of Flat throughout, by 10 to 50% (beyond chance at 4 of 5 points)"
