"""The device base class and the emulated device. Must not know models."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from typing import Any, TypeVar

from repro.device.clock import Cancelled, Clock, Future, Task, VirtualClock
from repro.device.cost import Demand, Machine, share
from repro.device.memory import Memory
from repro.device.op import FLASH, Op
from repro.device.trace import Phase, Span, Trace

T = TypeVar("T")

MOST_DEMANDS = 4096
"""Costs of ops that an emulated device remembers."""


class Device(ABC):
    """Runs ops and records their costs.

    Attributes:
        name: display name.
        main: the default processor for models.
        clock: virtual or wall.
        trace: all spans.
        memory: the DRAM budget.
        resources: resources that ops may name.
        keeps_tables: whether its engine keeps a streamed model's embedding table and output projection in
            memory.
        serial_reads: whether its engine reads a streamed layer only after the layer before it has computed.
        verifies: the processor of a target's passes over several rows; "" for `main`.
        early_drafts: whether a draft reads its prompt where, and as soon as, it is done with it first.
        substituted: resources that ops requested and that are missing, or have no kernel for the format of
            their weights, with the resource used instead.
    """

    def __init__(
        self,
        name: str,
        main: str,
        clock: Clock,
        memory: Memory,
        resources: frozenset[str],
        idle: float | None,
        keeps_tables: bool = True,
        serial_reads: bool = False,
        verifies: str = "",
        early_drafts: bool = False,
    ) -> None:
        self.name = name
        self.main = main
        self.clock = clock
        self.memory = memory
        self.resources = resources
        self.keeps_tables = keeps_tables
        self.serial_reads = serial_reads
        self.verifies = verifies
        self.early_drafts = early_drafts
        self.trace = Trace(idle_watts=idle)
        self.substituted: dict[str, str] = {}
        self._spawned: list[Task[Any]] = []

    @property
    def now(self) -> float:
        """Seconds on the device's clock."""
        return self.clock.now

    @abstractmethod
    def run(self, op: Op) -> Future[Any]:
        """Queue an op; the future gets the value of its `compute` when the op ends."""

    def spawn(self, coroutine: Coroutine[Any, None, T]) -> Task[T]:
        """Start a concurrent coroutine."""
        task = Task(coroutine)
        self._spawned.append(task)
        return task

    def play(self, coroutine: Coroutine[Any, None, T]) -> T:
        """Run a coroutine to its end, then cancel the tasks that it spawned; their errors are raised."""
        try:
            task = Task(coroutine)
            while not task.done:
                self.clock.next_event()()
            return task.result()
        finally:
            self._stop_spawned()

    def _stop_spawned(self) -> None:
        spawned, self._spawned = self._spawned, []
        for task in spawned:
            task.cancel()
        for task in spawned:
            if task.error is not None and not isinstance(task.error, Cancelled):
                raise task.error

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the duration of a block as a named phase."""
        start = self.now
        yield
        self.trace.phases.append(Phase(name, start, self.now))

    def addressable(self, resource: str) -> float:
        """Bytes of weights that a processor's graphs can address, over all its sessions; 0 for no limit."""
        return 0.0

    def predict_seconds(self, op: Op) -> float:
        """Seconds that an op takes alone; infinite if its processor cannot, or if nothing is known."""
        return inf

    def resource(self, wanted: str, precision: str = "fp32", storage_format: str = "") -> str:
        """The resource that serves ops for `wanted`: itself, or a substitute, which is recorded."""
        serving = self._serving(wanted, precision, storage_format)
        if serving != wanted:
            self.substituted[wanted] = serving
        return serving

    @abstractmethod
    def _serving(self, wanted: str, precision: str, storage_format: str) -> str:
        """The processor that serves ops for `wanted`; another where it is missing or has no kernel."""

    def close(self) -> None:
        """Release threads and files; an emulated device has none."""


@dataclass(slots=True, eq=False)
class _Running:
    """A running op: the work left, in seconds without DRAM contention, and its current speed."""

    op: Op
    done: Future[Any]
    value: Any
    demand: Demand
    start: float
    remaining: float
    pace: float = 0.0
    pace_since: float = 0.0
    booking: int = 0


class EmulatedDevice(Device):
    """An emulated machine on a virtual clock. An op's `compute` runs at its virtual start.

    Concurrent ops share DRAM bandwidth; when one starts or ends, the speed of the others is updated.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._clock = VirtualClock()
        memory = Memory(machine.dram_budget, machine.name, machine.read_ahead, lambda: self.now)
        resources = frozenset({FLASH, *machine.processors})
        super().__init__(
            machine.name,
            machine.main,
            self._clock,
            memory,
            resources,
            machine.idle_watts,
            machine.keeps_tables,
            machine.serial_reads,
            machine.verifies,
            machine.early_drafts,
        )
        self._free = {name: machine.slots(name) for name in resources}
        self._queue: dict[str, list[tuple[int, int, Op, Future[Any]]]] = {name: [] for name in resources}
        self._order = count()
        self._working: list[_Running] = []
        self._builds: dict[tuple[str, str, int], Future[Any]] = {}
        self._demands: dict[tuple[object, ...], Demand] = {}

    def addressable(self, resource: str) -> float:
        """See `Device`."""
        processor = self.machine.processors.get(resource)
        return processor.addressable if processor else 0.0

    def predict_seconds(self, op: Op) -> float:
        """See `Device`."""
        if op.precision not in self.machine.processors[op.on].peak:
            return inf
        demand = self.machine.demand(op)
        return demand.launch + demand.work

    def run(self, op: Op) -> Future[Any]:
        """Queue an op on its resource, after the static graph that it needs is built."""
        on = self.resource(op.on, op.precision, op.format)
        if on != op.on:
            op = op._replace(on=on)
        done: Future[Any] = Future()
        build = self._build(op) if op.graph else None
        if build and not build.done:
            build.on_done(partial(self._begin, op, done))
        else:
            self._begin(op, done)
        return done

    def _serving(self, wanted: str, precision: str, storage_format: str) -> str:
        if wanted == FLASH:
            return wanted
        return self.machine.processor_for(wanted, precision, storage_format)

    def _build(self, op: Op) -> Future[Any] | None:
        """The build of an op's static graph, started by the first op that needs it; None without builds."""
        processor = self.machine.processors[op.on]
        graph = (op.on, op.graph, processor.rows(op.rows))
        if processor.graph_seconds and graph not in self._builds:
            self._builds[graph] = Future()
            build = Op(op.on, "build", f"build {op.graph}", rows=graph[2], priority=op.priority)
            self._begin(build, self._builds[graph])
        return self._builds.get(graph)

    def _serve(self, on: str) -> None:
        """Start waiting ops while their resource has free slots."""
        queue = self._queue[on]
        while queue and self._free[on]:
            _, _, op, done = heapq.heappop(queue)
            self._begin(op, done, waited=True)

    def _begin(self, op: Op, done: Future[Any], waited: bool = False) -> None:
        """Start an op, or let it wait for a free slot: compute its value at once; launch comes before work.

        Args:
            op: the op.
            done: completes with its value.
            waited: it is the next of those that waited, and a slot is free.
        """
        if not waited and (self._queue[op.on] or not self._free[op.on]):
            heapq.heappush(self._queue[op.on], (op.priority, next(self._order), op, done))
            return
        self._free[op.on] -= 1
        try:
            value = op.compute() if op.compute else None
            demand = self._demand(op)
        except Exception as error:
            self._free[op.on] += 1
            done.fail(error)
            return
        running = _Running(op, done, value, demand, self.now, demand.work)
        if demand.launch > 0:
            self._clock.after(demand.launch, partial(self._work, running))
        else:
            self._work(running)

    def _demand(self, op: Op) -> Demand:
        if op.kind == "build":
            processor = self.machine.processors[op.on]
            return Demand(processor.graph_seconds, 0.0, 0.0, processor.watts or 0.0)
        key = op.asks  # all layers of a pass ask for the same
        demand = self._demands.get(key)
        if demand is None:
            if len(self._demands) == MOST_DEMANDS:
                self._demands.clear()
            demand = self._demands[key] = self.machine.demand(op)
        return demand

    def _work(self, running: _Running) -> None:
        self._working.append(running)
        self._set_pace()

    def _set_pace(self) -> None:
        if len(self._working) == 1 and self._working[0].demand.bandwidth <= self.machine.dram_bandwidth:
            if self._working[0].pace != 1.0:
                self._change(self._working[0], 1.0)
            return
        demands = [r.demand.bandwidth for r in self._working]
        if sum(demands) <= self.machine.dram_bandwidth:  # the usual case, by far
            for running in self._working:
                if running.pace != 1.0:
                    self._change(running, 1.0)
            return
        shares = share(self.machine.dram_bandwidth, demands)
        for running, demand, bandwidth in zip(self._working, demands, shares, strict=True):
            pace = bandwidth / demand if demand else 1.0
            if pace != running.pace:
                self._change(running, pace)

    def _change(self, running: _Running, pace: float) -> None:
        now = self.now
        running.remaining = max(0.0, running.remaining - running.pace * (now - running.pace_since))
        running.pace, running.pace_since = pace, now
        running.booking += 1
        self._clock.after(running.remaining / pace, partial(self._end, running, running.booking))

    def _end(self, running: _Running, booking: int) -> None:
        if booking != running.booking:
            return
        op, now = running.op, self.now
        self._working.remove(running)
        if op.on != FLASH and self.machine.processors[op.on].watts is None:
            self.trace.idle_watts = None  # energies are absent: this processor's power is not known
        if self._working:
            self._set_pace()
        joules = running.demand.watts * (now - running.start)
        self.trace.spans.append(
            Span(op.on, op.kind, op.name, running.start, now, op.rows, op.flops, op.bytes, joules)
        )
        self._free[op.on] += 1
        self._serve(op.on)
        running.done.set(running.value)
