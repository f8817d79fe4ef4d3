"""Fits of numbers in device and engine files to published cells, by running the emulator itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import log, sqrt
from typing import Any

import numpy as np

from repro.core.errors import InputError
from repro.core.reading import read_mapping
from repro.device.cost import Machine
from repro.device.device_file import machine
from repro.device.engines.engine_file import OWN, with_engine
from repro.reports.reference.reference import find, load_cells
from workshop.fitting.held_out import leave_out
from workshop.fitting.measures import measure
from workshop.fitting.problem import Observation, Parameter, Problem, Solution, Vector, solve
from workshop.fitting.specification import (
    FitSpecification,
    FittedCell,
    conf_file,
    leaf,
    number_at,
    with_number,
)

TOLERANCE = 0.005
"""Relative difference allowed between a file and its fit, since files round to three digits."""


@cache
def published(cell: str, end: str = "") -> float:
    """A cell's value; for a range its `low` or `high` end, or the geometric mean of both.

    Milliseconds are converted to seconds.
    """
    found = find(load_cells(), cell)
    low, high = found.value_low, found.value_high
    if low is None or high is None:
        raise InputError(f"{cell} is a bound, to which nothing can be fitted")
    return {"low": low, "high": high}.get(end, sqrt(low * high)) * (1e-3 if found.unit == "ms" else 1.0)


@dataclass(frozen=True)
class FitResult:
    """A fitted device under an engine.

    Attributes:
        specification: what was fitted to what.
        problem: the same as a problem.
        solution: the numbers.
    """

    specification: FitSpecification
    problem: Problem
    solution: Solution

    @cached_property
    def left_out(self) -> dict[str, float]:
        """By cell id, its value from a fit that did not see it, nor a cell that prints the same number.

        None where the others do not determine it.
        """
        given = self.specification
        counted = Counter(cell.mean or print_of(cell) for cell in given.cells)
        if len(counted) - (min(counted.values()) == 1) < len(given.numbers):
            return {}
        return leave_out(self.problem, self.solution, given.loss)

    @property
    def fitted(self) -> dict[str, float]:
        """Values of the cells under the fitted numbers."""
        return self.problem.predicted(self.solution.values)

    @property
    def aims(self) -> dict[str, float]:
        """What the cells were fitted to: published values, or the named ends of published ranges."""
        return {one.id: one.measured for one in self.problem.observations}


def contents(given: FitSpecification) -> dict[str, dict[str, Any]]:
    """The device's file and its engine's, by name.

    Raises:
        InputError: a number is in another file, so that no prediction would depend on it.
    """
    device = f"device/{given.device}"
    found = {device: read_mapping(conf_file(device))}
    if engine := engine_name(given, found[device]):
        found[f"engine/{engine}"] = read_mapping(conf_file(f"engine/{engine}"))
    for number in given.numbers:
        if number.file not in found:
            raise InputError(f"{number.name}: the fit's machine has {', '.join(found)} alone")
    return found


def engine_name(given: FitSpecification, device: Mapping[str, Any]) -> str:
    """The engine of a specification; empty for a device that names none."""
    return str(device.get("engine") or "") if given.engine == OWN else given.engine


def emulated(given: FitSpecification, files: Mapping[str, Mapping[str, Any]], program: str = "") -> Machine:
    """The machine of a specification, from the content of its files."""
    device = files[f"device/{given.device}"]
    engine = files.get(f"engine/{engine_name(given, device)}")
    return machine(with_engine(device, engine), program)


def device_problem(given: FitSpecification) -> Problem:
    """The problem of a specification; each prediction runs the emulator."""
    files = contents(given)
    measures = [measure(cell.measure, cell.given) for cell in given.cells]

    def predict(values: Vector) -> Vector:
        changed: dict[str, dict[str, Any]] = dict(files)
        for number, value in zip(given.numbers, values, strict=True):
            changed[number.file] = with_number(changed[number.file], number.at, float(value))
        programs = {cell.program for cell in given.cells}
        on = {program: emulated(given, changed, program) for program in programs}
        found = [run(on[cell.program]) for cell, run in zip(given.cells, measures, strict=True)]
        return np.array(found)

    parameters = []
    for number in given.numbers:
        low, high = number.between
        written = number_at(files[number.file], number.at)
        first = written if low <= written <= high else sqrt(low * high)
        parameters.append(Parameter(number.name, first, low, high))
    observations = tuple(
        Observation(cell.id, published(cell.id, cell.end), bundle=print_of(cell), mean=cell.mean)
        for cell in given.cells
    )
    return Problem(tuple(parameters), observations, predict)


def fit_device(given: FitSpecification) -> FitResult:
    """Fit a specification's numbers to its cells."""
    problem = device_problem(given)
    return FitResult(given, problem, solve(problem, loss=given.loss))


def print_of(cell: FittedCell) -> str:
    """Equal for cells of one measure that print the same number: a fit that saw one has seen the others."""
    return f"{cell.measure} {published(cell.id, cell.end):g}"


def differences(result: FitResult) -> list[str]:
    """Sentences on numbers of files that differ from the fit, or name other cells."""
    given, wrong = result.specification, []
    files = contents(given)
    cells, excluded = {cell.id for cell in given.cells}, set[str]()
    for number in given.numbers:
        written, found = number_at(files[number.file], number.at), result.solution.values[number.name]
        if not given.origin and abs(log(written / found)) > TOLERANCE:
            wrong.append(f"{number.name} is {written:g}; the fit gives {found:.3g}")
        named = {str(cell) for cell in leaf(files[number.file], number.at)[0].get("cells") or ()}
        excluded |= named
        if extra := named - cells - set(number.restated):
            wrong.append(f"{number.name} names {', '.join(sorted(extra))}, to which it is not fitted")
        if lacking := set(number.restated) - named:
            wrong.append(
                f"{number.name} does not name {', '.join(sorted(lacking))}, which restates its cells"
            )
    wrong += [f"{name} ended at a bound of its search" for name in result.solution.at_bound]
    if lacking := cells - excluded:
        wrong.append(f"no number names {', '.join(sorted(lacking))}, so that it would count as predicted")
    for carried in given.carried:
        written = number_at(read_mapping(conf_file(carried.file)), carried.at)
        expected = carried.ratio * result.solution.values.get(carried.of.name, float("nan"))
        if not abs(log(written / expected)) <= TOLERANCE:
            wrong.append(f"{carried.file}: {carried.at} is {written:g}; the ratio gives {expected:.3g}")
    return wrong
