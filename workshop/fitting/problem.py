"""A fitting problem in log space and its solution by least squares. Must not know devices or models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from repro.core.errors import InputError

Vector = NDArray[np.float64]
Values = Mapping[str, float]
Predict = Callable[[Vector], Vector]

NOISE = 0.1
"""Of a measurement, in units of the natural logarithm: from here on a miss counts linearly, not squared."""


@dataclass(frozen=True)
class Parameter:
    """A positive number to fit.

    Attributes:
        name: its name, unique in the problem.
        first: where the search begins.
        low: lower bound.
        high: upper bound.
    """

    name: str
    first: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.first <= self.high:
            raise InputError(f"{self.name}: {self.first:g} is not between {self.low:g} and {self.high:g}")


@dataclass(frozen=True)
class Observation:
    """A measured positive number.

    Attributes:
        id: its name.
        measured: the published value.
        bundle: observations that are left out together; its own id if empty.
        mean: observations with the same name here count once, by the mean of their log ratios; alone if
            empty.
    """

    id: str
    measured: float
    bundle: str = ""
    mean: str = ""

    @property
    def together(self) -> str:
        """What it is left out with."""
        return self.bundle or self.id


@dataclass(frozen=True)
class Problem:
    """Parameters, observations, and the function that predicts them.

    Attributes:
        parameters: what is fitted.
        observations: what it is fitted to.
        predict: predicted values of all observations, in their order, from parameter values, in theirs.
        absent: ids of observations that a solution must not see.
    """

    parameters: tuple[Parameter, ...]
    observations: tuple[Observation, ...]
    predict: Predict
    absent: frozenset[str] = field(default=frozenset())

    def without(self, ids: Sequence[str]) -> Problem:
        """The same problem, blind to some observations."""
        return replace(self, absent=self.absent | set(ids))

    def predicted(self, values: Values) -> dict[str, float]:
        """Predicted values by observation id, seen or not."""
        found = self.predict(np.array([values[p.name] for p in self.parameters]))
        return {o.id: float(value) for o, value in zip(self.observations, found, strict=True)}

    @property
    def weights(self) -> Vector:
        """Weight of each observation in each residual, `[residuals, observations]`.

        One over the noise, shared among those seen of one mean; 0 for those left out.
        """
        residuals = list(dict.fromkeys(o.mean or o.id for o in self.observations))
        found = np.zeros((len(residuals), len(self.observations)))
        for i, one in enumerate(self.observations):
            if one.id not in self.absent:
                found[residuals.index(one.mean or one.id), i] = 1 / NOISE
        counts = np.count_nonzero(found, axis=1, keepdims=True)
        return found / np.maximum(counts, 1)


@dataclass(frozen=True)
class Solution:
    """Fitted numbers.

    Attributes:
        values: by parameter name.
        at_bound: names of parameters that ended at a bound.
    """

    values: dict[str, float]
    at_bound: tuple[str, ...] = ()


def solve(problem: Problem, start: Values | None = None, loss: str = "soft_l1") -> Solution:
    """Minimize the weighted log ratios of predicted to measured.

    Ratios count by a loss that grows linearly for large ones (`soft_l1`), so that a single misprinted row
    does not move the rest.

    Args:
        problem: what to fit to what.
        start: values to begin with; each parameter's `first` where it has none.
        loss: name of a loss of `scipy.optimize.least_squares`.

    Raises:
        InputError: a prediction is not a positive finite number.
    """
    parameters = problem.parameters
    if not parameters:
        return Solution({})
    names = [p.name for p in parameters]
    measured = np.log([o.measured for o in problem.observations])
    weights = problem.weights

    def residuals(x: Vector) -> Vector:
        predicted = problem.predict(np.exp(x))
        if not np.all(np.isfinite(predicted) & (predicted > 0)):
            wrong = problem.observations[int(np.argmin(np.isfinite(predicted) & (predicted > 0)))].id
            raise InputError(f"the prediction of {wrong} is no positive finite number")
        return np.asarray(weights @ (np.log(predicted) - measured))

    given = start or {}
    first = np.log([min(max(given.get(p.name, p.first), p.low), p.high) for p in parameters])
    low, high = np.log([p.low for p in parameters]), np.log([p.high for p in parameters])
    fixed = high - low < 1e-12
    high = np.where(fixed, high + 1e-9, high)
    found = least_squares(
        residuals,
        np.clip(first, low + 1e-10, high - 1e-10),
        bounds=(low, high),
        loss=loss,
        x_scale=1.0,
        max_nfev=200,
        xtol=1e-6,
        ftol=1e-8,
    )
    values = {name: exp(x) for name, x in zip(names, found.x, strict=True)}
    near = 1e-3
    at_bound = tuple(
        p.name
        for p, x, bottom, top, stuck in zip(parameters, found.x, low, high, fixed, strict=True)
        if not stuck and (x - bottom < near or top - x < near)
    )
    return Solution(values, at_bound)
