"""Least squares in log space: known numbers come back, and are predicted without what was left out."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from repro.core.errors import InputError
from workshop.fitting.errors import errors, skill
from workshop.fitting.held_out import leave_out
from workshop.fitting.problem import Observation, Parameter, Problem, Vector, solve

SIZES = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


def affine(values: Vector) -> Vector:
    """A start and a rate."""
    found: Vector = values[0] + SIZES / values[1]
    return found


def problem(truth: tuple[float, float] = (0.5, 3.0), **changes: float) -> Problem:
    measured = affine(np.array(truth))
    for name, factor in changes.items():
        measured[int(name.removeprefix("row"))] *= factor
    return Problem(
        (Parameter("start", 1.0, 1e-3, 1e3), Parameter("rate", 1.0, 1e-3, 1e3)),
        tuple(Observation(f"row{i}", float(m)) for i, m in enumerate(measured)),
        affine,
    )


def test_known_numbers_come_back() -> None:
    values = solve(problem()).values
    assert values == pytest.approx({"start": 0.5, "rate": 3.0}, rel=1e-4)


def test_leaving_out_predicts_each_row_from_the_others() -> None:
    wrong = problem(row4=10.0)
    found = leave_out(wrong, solve(wrong))
    assert set(found) == {f"row{i}" for i in range(5)}
    assert found["row4"] == pytest.approx(float(affine(np.array([0.5, 3.0]))[4]), rel=1e-3)


def test_a_row_on_which_alone_a_number_rests_cannot_be_left_out() -> None:
    """Two numbers, each of rows of its own: the second one's only row would predict itself."""
    parameters = (Parameter("one", 1.0, 1e-3, 1e3), Parameter("two", 1.0, 1e-3, 1e3))
    rows = tuple(Observation(name, value) for name, value in (("a", 2.0), ("b", 2.1), ("c", 7.0)))
    given = Problem(parameters, rows, lambda v: np.array([v[0], v[0], v[1]]))
    assert set(leave_out(given, solve(given))) == {"a", "b"}


def test_a_number_at_its_bound_is_named() -> None:
    bounded = Problem((Parameter("x", 1.0, 0.5, 2.0),), (Observation("a", 10.0),), lambda v: v)
    solution = solve(bounded)
    assert solution.at_bound == ("x",)
    assert solution.values["x"] == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("wrong", [0.0, -1.0, inf, nan])
def test_a_prediction_that_is_no_positive_number_is_named(wrong: float) -> None:
    bad = Problem((Parameter("x", 1.0, 0.5, 2.0),), (Observation("a", 1.0),), lambda v: v * 0 + wrong)
    with pytest.raises(InputError, match="prediction of a"):
        solve(bad)


def test_errors_are_medians_and_skill_is_over_another_s() -> None:
    truth = {"a": 1.0, "b": 2.0, "c": 4.0}
    ours = {"a": 1.1, "b": 2.0, "c": 2.0}
    found = errors(ours, truth, ["a", "b", "c", "absent"])
    assert (found.n, found.median) == (3, pytest.approx(0.1))
    assert found.signed == pytest.approx((1.1 * 1.0 * 0.5) ** (1 / 3))
    assert skill(found, errors({"a": 1.2}, truth, ["a"])) == pytest.approx(0.5)
    assert errors({}, truth, ["a"]).n == 0
    assert np.isnan(skill(found, errors({}, truth, ["a"])))
