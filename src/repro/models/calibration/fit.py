"""Costs of layers and output projections, fitted to timings of probes.

Owns the form: a layer of `rows` tokens takes `start(rows) + seconds(rows) * weights + attention(rows) *
reach`, with `reach` the FLOPs of attention for one row. None of the three falls with more rows. Must not
know probes or files. The fit minimizes relative errors (nonnegative least squares over the steps between
measured rows).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from scipy.optimize import nnls

from repro.core.errors import InputError
from repro.models.calibration.probe import HEAD, LAYER, READ, REST, Kernels, PartTiming

Points = tuple[tuple[int, float], ...]
"""A curve over rows."""


@dataclass(frozen=True)
class PartCost:
    """Costs of a layer's linears, or of the output projection.

    Attributes:
        start: seconds before the work, by rows.
        rate: FLOPs per second of the linears, by rows.
    """

    start: Points
    rate: Points

    @property
    def best(self) -> float:
        """The rate at the number of rows that is best, FLOPs per second."""
        return max(rate for _, rate in self.rate)

    def seconds(self, weight_count: float, row_count: int) -> float:
        """Seconds of a part with `weight_count` at one of the measured rows."""
        return dict(self.start)[row_count] + 2.0 * row_count * weight_count / dict(self.rate)[row_count]


@dataclass(frozen=True)
class FittedCosts:
    """Costs by kernels.

    Attributes:
        layers: of one layer, without attention.
        heads: of the output projection.
        attention: FLOPs per second of attention, by rows; the same for all kernels, since the cache is fp32.
        rest: seconds of a pass outside its layers and output projection, by rows.
        reads: seconds before a read, and bytes per second, of the streamed layers; `None` without any.
        errors: predicted over measured seconds less 1, of each fitted timing.
    """

    layers: Mapping[Kernels, PartCost]
    heads: Mapping[Kernels, PartCost]
    attention: Points
    rest: Points
    errors: tuple[float, ...]
    reads: tuple[float, float] | None = None


def medians(timings: Iterable[PartTiming]) -> list[PartTiming]:
    """One timing a setting: its median."""
    seconds_by_setting: dict[PartTiming, list[float]] = {}
    for timing in timings:
        seconds_by_setting.setdefault(timing._replace(seconds=0.0), []).append(timing.seconds)
    return [setting._replace(seconds=median(seconds)) for setting, seconds in seconds_by_setting.items()]


def fit(timings: Iterable[PartTiming]) -> FittedCosts:
    """The costs that come nearest to the timings.

    Raises:
        InputError: fewer than two sizes of a part were timed, so that start and rate cannot be told apart.
    """
    median_timings = medians(timings)
    by_part = {part: [t for t in median_timings if t.part == part] for part in (LAYER, HEAD, REST, READ)}
    layers, attention, layer_errors = fit_layers(by_part[LAYER])
    heads, _, head_errors = fit_layers(by_part[HEAD])
    seconds_by_rows: dict[int, list[float]] = {}
    for t in by_part[REST]:
        seconds_by_rows.setdefault(t.rows, []).append(t.seconds)
    other_timings = tuple(
        (row_count, median(seconds_by_rows[row_count])) for row_count in sorted(seconds_by_rows)
    )
    return FittedCosts(
        layers, heads, attention, other_timings, (*layer_errors, *head_errors), _reads(by_part[READ])
    )


def _reads(reads: Sequence[PartTiming]) -> tuple[float, float] | None:
    """Latency and rate of reads: the affine function of bytes with the least squared relative error."""
    if not reads:
        return None
    matrix = np.array([[1.0 / timing.seconds, timing.weights / 1e9 / timing.seconds] for timing in reads])
    (latency, per_gigabyte), _ = nnls(matrix, np.ones(len(reads)))
    return (float(latency), 1e9 / float(per_gigabyte)) if per_gigabyte > 0 else None


def fit_layers(timings: Iterable[PartTiming]) -> tuple[dict[Kernels, PartCost], Points, tuple[float, ...]]:
    """Start and rate of each kernels, attention's common rate, and the relative errors.

    All steps from one number of rows to the next are unknowns of one problem.

    Kernels whose times do not grow with weights have the least rate that the largest pass shows.

    Raises:
        InputError: as `fit`.
    """
    timings = list(timings)
    rows = sorted({timing.rows for timing in timings})
    kinds = list(dict.fromkeys(timing.kernels for timing in timings))
    for kind in kinds:
        if len({timing.weights for timing in timings if timing.kernels == kind}) < 2:
            raise InputError(f"{kind.label}: one size was timed; start and rate need two or more")
    measured_seconds = np.array([timing.seconds for timing in timings])
    terms = np.zeros((len(timings), 2 * len(kinds) + 1, len(rows)))
    for term, timing in zip(terms, timings, strict=True):
        steps = np.array([step_rows <= timing.rows for step_rows in rows], dtype=float)
        start = 2 * kinds.index(timing.kernels)
        term[start] = steps
        term[start + 1] = steps * timing.weights
        term[start + 1, 0] += timing.single
        term[-1] = steps * timing.attention / timing.rows
    matrix = terms.reshape(len(timings), -1) / measured_seconds[:, None]
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    solution, _ = nnls(matrix / scale, np.ones(len(timings)), maxiter=100 * matrix.shape[1])
    solution /= scale
    *kind_curves, attention_curve = solution.reshape(-1, len(rows)).cumsum(axis=1)
    part_costs = {}
    for kind, starts, seconds in zip(kinds, kind_curves[::2], kind_curves[1::2], strict=True):
        rate = _rates(rows, seconds, 2.0) or _least([timing for timing in timings if timing.kernels == kind])
        part_costs[kind] = PartCost(tuple(zip(rows, starts.tolist(), strict=True)), rate)
    return part_costs, _rates(rows, attention_curve, 1.0), tuple((matrix @ solution - 1.0).tolist())


def _least(timings: Sequence[PartTiming]) -> Points:
    """The highest rate that a pass shows if all of its time were spent on its weights."""
    rates = [(timing.rows, 2.0 * timing.rows * timing.weights / timing.seconds) for timing in timings]
    return (max(rates, key=lambda rate: rate[1]),)


def _rates(rows: Sequence[int], seconds: np.ndarray, operations: float) -> Points:
    """Operations per second from the seconds that one weight, or one FLOP of a row's attention, takes."""
    return tuple((r, float(operations * r / s)) for r, s in zip(rows, seconds, strict=True) if s > 0)
