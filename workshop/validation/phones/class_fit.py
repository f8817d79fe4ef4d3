"""The fit of all classes of engines to the fitted rows. Must not see any other row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workshop.fitting.held_out import leave_out
from workshop.fitting.problem import Observation, Problem, Solution, Vector, solve
from workshop.validation.phones.class_specification import class_specification
from workshop.validation.phones.classes import PassSeconds, parameters
from workshop.validation.phones.quantities import FIRST_TOKEN, Quantity, quantities
from workshop.validation.phones.rows import FIT, PhoneRow

FactsFactors = Mapping[str, float]
"""Factors on facts of data sheets by `CHIP/bandwidth` and `CHIP/PROCESSOR`."""


@dataclass(frozen=True)
class ClassFit:
    """A fit and what it saw.

    Attributes:
        problem: parameters and observations, by the rows' quantities.
        solution: the fitted numbers.
        factors: on data sheets' facts, with which it was made and predicts.
    """

    problem: Problem
    solution: Solution
    factors: FactsFactors

    @property
    def names(self) -> list[str]:
        """Names of the parameters."""
        return [p.name for p in self.problem.parameters]

    def predicted(self, wanted: Sequence[Quantity]) -> dict[str, float]:
        """Values in their printed units by id, whether the fit saw them or not."""
        seconds = PassSeconds(wanted, self.names, self.factors)(self.vector)
        return {one.id: one.printed(float(s)) for one, s in zip(wanted, seconds, strict=True)}

    @property
    def vector(self) -> Vector:
        """The fitted numbers in the order of the parameters."""
        return np.array([self.solution.values[name] for name in self.names])

    def left_out(self) -> dict[str, float]:
        """Each seen value, predicted by a fit that saw nothing of its source and model."""
        return leave_out(self.problem, self.solution)

    def without(self, ids: Sequence[str]) -> ClassFit:
        """The fit that does not see some observations."""
        blind = self.problem.without(ids)
        return ClassFit(blind, solve(blind, self.solution.values), self.factors)


def class_problem(
    rows: Sequence[PhoneRow], roles: Mapping[str, str], factors: FactsFactors | None = None
) -> Problem:
    """The problem of fitting all classes.

    Args:
        rows: rows whose classes need numbers.
        roles: roles by row id; only rows with the role `fit` are seen.
        factors: on data sheets' facts.
    """
    fitted = [row for row in rows if roles.get(row.id) == FIT]
    seen = list(quantities(fitted))
    found = parameters(fitted, rows)
    noise = class_specification().noise
    observations = tuple(
        Observation(
            q.id,
            q.measured,
            f"{q.row.source}, {q.row.shape}",
            noise,
        )
        for q in seen
    )
    return Problem(found, observations, _printed(seen, PassSeconds(seen, [p.name for p in found], factors)))


def fit_classes(
    rows: Sequence[PhoneRow],
    roles: Mapping[str, str],
    factors: FactsFactors | None = None,
    start: Mapping[str, float] | None = None,
) -> ClassFit:
    """Fit all classes; `start` gives values to begin with."""
    problem = class_problem(rows, roles, factors)
    return ClassFit(problem, solve(problem, start), factors or {})


def _printed(seen: Sequence[Quantity], seconds: Callable[[Vector], Vector]) -> Callable[[Vector], Vector]:
    """Predictions in printed units: seconds, or rows of a pass per second."""
    times = np.array([one.kind == FIRST_TOKEN for one in seen])
    rows = np.array([float(one.rows) for one in seen])

    def predict(values: Vector) -> Vector:
        took = seconds(values)
        return np.where(times, took, rows / took)

    return predict
