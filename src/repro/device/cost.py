"""The cost model: seconds and watts of an op on an emulated machine. Must not know clocks or queues.

An op takes a launch and a start, then the longer of its compute time and its memory time (a roofline), or
their sum where the engine does not overlap them. While working it demands DRAM bandwidth at a constant rate;
`share` divides the bandwidth if demand exceeds it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

from repro.core.errors import InputError
from repro.device.op import FLASH, Op

FULL_ROWS = 128.0
"""Rows from which on a rate no longer grows, where only those of one row and of many are known."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A measured function: linear interpolation between points, constant beyond the first and the last."""

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

    def scaled(self, first: float, last: float) -> Curve:
        """The curve times a factor that goes from `first` at its first point to `last` at its last.

        A curve of one point gets two, at 1 and `FULL_ROWS`.
        """
        points = (
            self.points if len(self.points) > 1 else tuple((x, self.points[0][1]) for x in (1.0, FULL_ROWS))
        )
        factor = Curve(((points[0][0], first), (points[-1][0], last)))
        return Curve(tuple((x, y * factor.at(x)) for x, y in points))


VERSION = 1
"""Version of the cost model (ops, clock, queues, memory, energy). Raised by hand when an outcome changes."""

FULL_EFFICIENCY = Curve(((1.0, 1.0),))


@dataclass(frozen=True, slots=True)
class Demand:
    """What one op demands of a machine.

    Attributes:
        launch: seconds before work starts, in which no bytes move.
        work: seconds of work without contention for DRAM.
        bandwidth: bytes per second moved while working at that speed.
        watts: power above idle while the op holds its resource.
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
        bandwidth: bytes per second from DRAM without contention.
        launch: seconds to launch an op and to learn that it is done, for each of its launches.
        watts: power above idle when busy; `None` where nobody measured it.
        efficiency: share of the peak by number of rows (tokens).
        tile: rows are padded to a multiple of this (vector widths, waves).
        shapes: row counts of its static graphs, to which rows are padded; empty if any count is possible.
        graph_seconds: seconds to build and optimize one static graph.
        window: bytes that its graphs and their weights can address; 0 for no limit.
        slower: factor on the compute time by kind of op.
        slots: ops that run concurrently.
        rows_exponent: memory time of `r` rows is `r ** rows_exponent` times that of one row: 0 reuses each
            weight for all rows, 1 fetches it again for every row.
        own_efficiency: efficiency by precision (`fp32`) or by kind of op and precision (`head.fp32`), in
            place of the one of all.
        format_efficiency: efficiency by storage format (`q2_k`), in place of its precision's.
        unsupported: storage formats for which the engine has no kernel here, with the processor that
            computes them instead.
        attention: operations per second of attention, by number of rows; `None` counts it as other work.
        start: seconds before an op's work by precision, or by kind of op and precision as `own_efficiency`,
            for each of its launches, by number of rows; none for a precision that is not named. Like
            `launch`, it moves no bytes.
        start_exponent: the start of `r` rows is `r ** start_exponent` times that of one row.
        start_rows: most rows with which the start grows; beyond, it is that of so many.
        rows_quadratic: compute time grows by this share for each row: a term in the square of the rows.
        adds: whether compute time and memory time add up instead of overlapping.
        sessions: address spaces of `session_bytes` bytes each that one process may open (an NPU's).
        session_bytes: bytes that a session can address; 0 for no limit.
        threads: threads for which the rates hold; 0 if unknown. Costs do not depend on it.
        token: seconds of the engine's framework for each token that it decodes here: once before every output
            projection, wherever that runs.
    """

    peak: Mapping[str, float]
    bandwidth: float
    launch: float = 0.0
    watts: float | None = 0.0
    efficiency: Curve = FULL_EFFICIENCY
    tile: int = 1
    shapes: tuple[int, ...] = ()
    graph_seconds: float = 0.0
    window: float = 0.0
    slower: Mapping[str, float] = field(default_factory=dict)
    slots: int = 1
    rows_exponent: float = 0.0
    own_efficiency: Mapping[str, Curve] = field(default_factory=dict)
    format_efficiency: Mapping[str, Curve] = field(default_factory=dict)
    unsupported: Mapping[str, str] = field(default_factory=dict)
    attention: Curve | None = None
    start: Mapping[str, Curve] = field(default_factory=dict)
    start_exponent: float = 0.0
    start_rows: float = inf
    rows_quadratic: float = 0.0
    adds: bool = False
    sessions: int = 1
    session_bytes: float = 0.0
    threads: int = 0
    token: float = 0.0

    @property
    def addressable(self) -> float:
        """Bytes of weights that its graphs can address, over all sessions; 0 for no limit."""
        return self.sessions * self.session_bytes or self.window

    def rows(self, rows: int) -> int:
        """Number of rows after padding to the tile and to a static graph's shape."""
        padded = ceil(rows / self.tile) * self.tile
        if not self.shapes:
            return padded
        fitting_shapes = [shape for shape in self.shapes if shape >= padded]
        largest_shape = max(self.shapes)
        return min(fitting_shapes) if fitting_shapes else ceil(padded / largest_shape) * largest_shape

    def demand(self, op: Op) -> Demand:
        """The demand of an op.

        Raises:
            InputError: the processor has no rate for the op's precision.
        """
        if op.precision not in self.peak:
            raise InputError(
                f"{op.on} has no rate for precision {op.precision!r} (op {op.name}); "
                f"it has {', '.join(sorted(self.peak))}"
            )
        computed_rows = self.rows(op.rows)
        attention_flops = op.attention if self.attention else 0.0
        flops = (op.flops - attention_flops) * computed_rows / op.rows * self.slower.get(op.kind, 1.0)
        own = self.format_efficiency.get(op.format) or self._curve(self.own_efficiency, op)
        efficiency = own or self.efficiency
        seconds = flops / (self.peak[op.precision] * efficiency.at(computed_rows))
        if attention_flops and self.attention:
            seconds += attention_flops * computed_rows / op.rows / self.attention.at(computed_rows)
        seconds *= 1.0 + self.rows_quadratic * computed_rows
        moving_seconds = op.bytes / self.bandwidth * computed_rows**self.rows_exponent
        work = seconds + moving_seconds if self.adds else max(seconds, moving_seconds)
        start = self._curve(self.start, op)
        start_factor = min(computed_rows, self.start_rows) ** self.start_exponent
        start_seconds = self.launch + (start.at(computed_rows) * start_factor if start else 0.0)
        return _demand(start_seconds * op.launches, work, op.bytes, self.watts or 0.0)

    @staticmethod
    def _curve(curves: Mapping[str, Curve], op: Op) -> Curve | None:
        """The curve of the op's kind and precision, else of its precision, if there is one."""
        return curves.get(f"{op.kind}.{op.precision}") or curves.get(op.precision)


@dataclass(frozen=True, slots=True)
class Flash:
    """Storage: bytes per second by request size, seconds before the first byte, watts when reading."""

    bandwidth: Curve
    latency: float = 0.0
    watts: float = 0.0
    slots: int = 1

    def demand(self, op: Op) -> Demand:
        """The demand of a read."""
        rate = self.bandwidth.at(op.request or op.bytes)
        return _demand(self.latency, op.bytes / rate, op.bytes, self.watts)


def _demand(launch: float, work: float, moved: float, watts: float) -> Demand:
    return Demand(launch, work, moved / work if work > 0 else 0.0, watts)


@dataclass(frozen=True, slots=True)
class Machine:
    """The parameters of an emulated device, in SI units.

    Attributes:
        name: display name.
        main: the default processor for models.
        verifies: the processor of a target's passes over several rows (prompts and verifications), if its
            method names none; "" for `main`.
        processors: processors by resource name.
        flash: the storage.
        dram_bandwidth: bytes per second that all resources share.
        dram_budget: bytes that models may hold.
        idle_watts: idle power; `None` if unknown, in which case energies are absent.
        keeps_tables: whether the engine keeps a streamed model's embedding table and output projection in
            memory; if not, it reads the projection again in every pass, like a layer.
        read_ahead: share of the budget up to which streamed layers may be read ahead.
        sync: seconds until a processor sees data that another one wrote.
        serial_reads: whether a streamed layer is read only after the layer before it has computed.
        early_drafts: whether a draft reads its prompt on the processor on which it has done so first, beside
            the target's prompt where that is another one; if not, on its own, after the target.
    """

    name: str
    main: str
    processors: Mapping[str, Processor]
    flash: Flash
    dram_bandwidth: float
    dram_budget: float
    idle_watts: float | None
    keeps_tables: bool = True
    read_ahead: float = 0.0
    sync: float = 0.0
    serial_reads: bool = False
    verifies: str = ""
    early_drafts: bool = False

    def demand(self, op: Op) -> Demand:
        """The demand of an op on its resource."""
        demand = self.flash.demand(op) if op.on == FLASH else self.processors[op.on].demand(op)
        token = self.processors[op.decoder].token if op.decoder else 0.0
        overhead = (self.sync if op.synced else 0.0) + token
        return replace(demand, launch=demand.launch + overhead) if overhead else demand

    def slots(self, resource: str) -> int:
        """Number of ops that a resource runs concurrently."""
        return self.flash.slots if resource == FLASH else self.processors[resource].slots

    def processor_for(self, wanted: str, precision: str, storage_format: str = "") -> str:
        """The processor that serves ops for `wanted`.

        Itself; the one that its engine falls back to without a kernel for the format; the fastest where there
        is no such processor.
        """
        if wanted not in self.processors:
            return self.fastest(precision)
        instead = self.processors[wanted].unsupported.get(storage_format, wanted)
        return instead if instead in self.processors else wanted

    def fastest(self, precision: str) -> str:
        """The processor with the highest peak at a precision (at any precision if none supports it)."""
        return max(
            self.processors,
            key=lambda name: (
                self.processors[name].peak.get(precision, 0.0),
                max(self.processors[name].peak.values()),
            ),
        )


FREE_MACHINE = Machine(
    "no time at all",
    "cpu",
    {"cpu": Processor(dict.fromkeys(("fp32", "fp16", "int8"), inf), inf)},
    Flash(Curve(((1.0, inf),))),
    inf,
    inf,
    0.0,
)
"""A machine on which nothing takes time, for runs that need only the tokens of answers."""


def share(capacity: float, demands: Sequence[float]) -> list[float]:
    """Divide bandwidth by max-min fairness.

    Args:
        capacity: available bytes per second.
        demands: demanded bytes per second, one per op.
    """
    if sum(demands) <= capacity:
        return list(demands)
    shares = [0.0] * len(demands)
    remaining = capacity
    ascending = sorted(range(len(demands)), key=lambda i: (demands[i], i))
    for position, i in enumerate(ascending):
        shares[i] = min(demands[i], remaining / (len(ascending) - position))
        remaining -= shares[i]
    return shares
