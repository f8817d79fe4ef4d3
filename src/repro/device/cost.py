"""Seconds and joules of an op on a machine that is not here. Pure arithmetic: no clock, no queue.

An op first pays a fixed launch time, then works for the longer of computing and moving its bytes. Working, it
demands DRAM bandwidth at an even rate; `share` says what each gets when all together demand too much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

from repro.core.errors import InputError
from repro.device.op import FLASH, Op


@dataclass(frozen=True, slots=True)
class Curve:
    """A measured function: straight lines between points, flat beyond the first and the last."""

    points: tuple[tuple[float, float], ...]

    def at(self, x: float) -> float:
        """The value at `x`."""
        xs = [p[0] for p in self.points]
        i = bisect_left(xs, x)
        if i == 0:
            return self.points[0][1]
        if i == len(xs):
            return self.points[-1][1]
        (x0, y0), (x1, y1) = self.points[i - 1], self.points[i]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


VERSION = 1
"""Of the cost model: ops, clock, queues, memory and energy. Raised by hand when an outcome changes."""

FULL = Curve(((1.0, 1.0),))


@dataclass(frozen=True, slots=True)
class Demand:
    """What one op asks of a machine.

    Attributes:
        launch: seconds before work starts, in which no bytes move.
        work: seconds of work when DRAM is free.
        bandwidth: bytes per second moved while working at that pace.
        watts: drawn above idle while the op holds its resource.
    """

    launch: float
    work: float
    bandwidth: float
    watts: float


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor's rates.

    Attributes:
        peak: operations per second by arithmetic precision.
        bandwidth: bytes per second from DRAM that it reaches alone.
        launch: seconds to launch an op and to learn that it is done.
        watts: drawn above idle when busy.
        efficiency: share of the peak by rows.
        tile: rows are computed in multiples of this (vector widths, waves).
        shapes: the only row counts of its static graphs, rounded up to; empty for any.
        graph_seconds: to build and optimize one static graph.
        window: bytes that its graphs and their weights can address; 0 is no limit.
        slower: factor on the computing time by kind of op.
        slots: ops that it works on at once.
        rows_exponent: moving the bytes of `r` rows takes `r ** rows_exponent` times as long as those of one:
            0 reuses each weight for all rows, 1 fetches it anew for every row.
    """

    peak: Mapping[str, float]
    bandwidth: float
    launch: float = 0.0
    watts: float = 0.0
    efficiency: Curve = FULL
    tile: int = 1
    shapes: tuple[int, ...] = ()
    graph_seconds: float = 0.0
    window: float = 0.0
    slower: Mapping[str, float] = field(default_factory=dict)
    slots: int = 1
    rows_exponent: float = 0.0

    def rows(self, rows: int) -> int:
        """Rows that are computed when `rows` are wanted: up to the tile, or to a static graph's."""
        padded = ceil(rows / self.tile) * self.tile
        if not self.shapes:
            return padded
        fitting = [shape for shape in self.shapes if shape >= padded]
        largest = max(self.shapes)
        return min(fitting) if fitting else ceil(padded / largest) * largest

    def demand(self, op: Op) -> Demand:
        """Seconds and bandwidth of an op.

        Raises:
            InputError: the processor has no rate for the op's precision.
        """
        if op.precision not in self.peak:
            raise InputError(
                f"{op.on} has no rate for precision {op.precision!r} (op {op.name}); "
                f"it has {', '.join(sorted(self.peak))}"
            )
        computed = self.rows(op.rows)
        flops = op.flops * computed / op.rows * self.slower.get(op.kind, 1.0)
        seconds = flops / (self.peak[op.precision] * self.efficiency.at(computed))
        moving = op.bytes / self.bandwidth * computed**self.rows_exponent
        work = max(seconds, moving)
        return _demand(self.launch * op.launches, work, op.bytes, self.watts)


@dataclass(frozen=True, slots=True)
class Flash:
    """Storage: bytes per second by request size, seconds before the first byte, watts when reading."""

    bandwidth: Curve
    latency: float = 0.0
    watts: float = 0.0
    slots: int = 1

    def demand(self, op: Op) -> Demand:
        """Seconds and DRAM bandwidth of a read."""
        rate = self.bandwidth.at(op.request or op.bytes)
        return _demand(self.latency, op.bytes / rate, op.bytes, self.watts)


def _demand(launch: float, work: float, moved: float, watts: float) -> Demand:
    return Demand(launch, work, moved / work if work > 0 else 0.0, watts)


@dataclass(frozen=True, slots=True)
class Machine:
    """All that an emulated device needs to know of the real one; everything in SI units.

    Attributes:
        name: as people call it.
        main: the processor that models run on unless a method says otherwise.
        processors: by resource name.
        flash: its storage.
        dram_bandwidth: bytes per second that all resources share.
        dram_budget: bytes that models may hold.
        idle_watts: drawn always.
        keeps_tables: whether its engine holds a streamed model's embedding table and output projection in
            memory, or reads the projection again in every pass like one more layer.
        read_ahead: share of the budget up to which streamed layers may be read ahead.
        sync: seconds until a processor sees what another one wrote.
    """

    name: str
    main: str
    processors: Mapping[str, Processor]
    flash: Flash
    dram_bandwidth: float
    dram_budget: float
    idle_watts: float
    keeps_tables: bool = True
    read_ahead: float = 0.0
    sync: float = 0.0

    def demand(self, op: Op) -> Demand:
        """What an op asks of the resource that it names."""
        asked = self.flash.demand(op) if op.on == FLASH else self.processors[op.on].demand(op)
        return replace(asked, launch=asked.launch + self.sync) if op.synced else asked

    def slots(self, resource: str) -> int:
        """Ops that a resource works on at once."""
        return self.flash.slots if resource == FLASH else self.processors[resource].slots

    def fastest(self, precision: str) -> str:
        """The processor with the highest peak at a precision (any precision if none has it)."""
        return max(
            self.processors,
            key=lambda name: (
                self.processors[name].peak.get(precision, 0.0),
                max(self.processors[name].peak.values()),
            ),
        )


FREE = Machine(
    "no time at all",
    "cpu",
    {"cpu": Processor(dict.fromkeys(("fp32", "fp16", "int8"), inf), inf)},
    Flash(Curve(((1.0, inf),))),
    inf,
    inf,
    0.0,
)
"""A machine on which nothing takes time, for results that only the text of an answer matters to."""


def share(capacity: float, demands: Sequence[float]) -> list[float]:
    """Max-min fair bandwidth: nobody gets more than it demands, and what the modest leave the greedy share.

    Args:
        capacity: bytes per second there are.
        demands: bytes per second that each asks for.
    """
    if sum(demands) <= capacity:
        return list(demands)
    granted = [0.0] * len(demands)
    left = capacity
    waiting = sorted(range(len(demands)), key=lambda i: (demands[i], i))
    for position, i in enumerate(waiting):
        granted[i] = min(demands[i], left / (len(waiting) - position))
        left -= granted[i]
    return granted
