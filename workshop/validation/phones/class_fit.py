"""The fit of all classes of engines to measured rows, by the closed form of their passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import least_squares
from scipy.sparse import csr_matrix, diags, vstack

from workshop.validation.phones.class_specification import class_specification
from workshop.validation.phones.classes import (
    LogTerm,
    PassSeconds,
    Vector,
    computes,
    log_terms,
    numbers_of,
)
from workshop.validation.phones.quantities import Quantity


@dataclass(frozen=True)
class ClassFit:
    """Fitted terms of logarithms; those that a fit did not see are 0."""

    values: dict[LogTerm, float]

    @cached_property
    def _places(self) -> dict[LogTerm, int]:
        return {one: i for i, one in enumerate(self.values)}

    def predicted(self, wanted: Sequence[Quantity]) -> dict[str, float]:
        """Values in their printed units by id, whether the fit saw them or not."""
        if not wanted:
            return {}
        seconds = PassSeconds(wanted, self._places)(np.array([*self.values.values()]))
        return {one.id: one.printed(float(s)) for one, s in zip(wanted, seconds, strict=True)}

    def number(self, name: str, engine: str, chip: str = "") -> float:
        """A number of a class, or of the class on a chip, within its bounds."""
        log = sum(self.values.get(one, 0.0) for one in log_terms(name, engine, chip))
        given = next((one for one in class_specification().numbers if one.name == name), None)
        if given is None:
            return float(np.exp(log))
        low, high = given.between
        return float(np.clip(given.first * np.exp(log), low, high))

    def at_bounds(self, engine: str, chip: str = "") -> list[str]:
        """Names of the numbers that ended at a bound."""
        return [
            one.name
            for one in class_specification().numbers
            if min(abs(np.log(self.number(one.name, engine, chip) / end)) for end in one.between) < 1e-3
        ]


def fit_classes(seen: Sequence[Quantity]) -> ClassFit:
    """Fit all classes to measured values.

    The log ratios of predicted to measured, over the noise, and the terms over their widths are made
    small. Both count by a loss that grows linearly for large ones, so that a misprinted row does not move the
    rest.
    """
    used = dict.fromkeys(
        term
        for one in seen
        for number in numbers_of(one)
        for term in log_terms(number, computes(one.row.engine, one.row.format), one.row.soc)
    )
    places = {term: i for i, term in enumerate(used)}
    passes, noise = PassSeconds(seen, places), class_specification().noise
    measured = np.log([one.printed(one.measured) for one in seen])
    widths = np.array([term.width for term in used])

    def residuals(values: Vector) -> Vector:
        return np.concatenate([(np.log(passes(values)) - measured) / noise, values / widths])

    def jacobian(values: Vector) -> csr_matrix:
        return vstack([passes.jacobian(values) / noise, diags(1 / widths)]).tocsr()

    found = least_squares(
        residuals, np.zeros(len(used)), jacobian, loss="soft_l1", tr_solver="lsmr", xtol=1e-6, ftol=1e-6
    )
    return ClassFit(dict(zip(used, map(float, found.x), strict=True)))
