"""The local device: ops run on this machine, and their spans are measured on a wall clock.

Must not know torch: the GPU stream is passed in. CPU ops and the launches of GPU ops run inline on the loop's
own thread; workers read the flash and wait for the GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Protocol, Self

from repro.core.errors import InputError
from repro.device.clock import Future, Wake, WallClock
from repro.device.device_file import facts, read_fact
from repro.device.emulated import Device
from repro.device.energy import EnergyMeter, open_meter
from repro.device.facts.kinds import KINDS
from repro.device.memory import Memory
from repro.device.op import CPU, FLASH, GPU, Op
from repro.device.trace import Span
from repro.device.workers import Workers

READ_EACH_S = 0.01
"""Seconds between two readings of energy within a phase: counters move every 1 to 100 ms."""


class Event(Protocol):
    """An event in a GPU stream, as `torch.cuda.Event`."""

    def wait(self) -> None:
        """Block the calling thread until all work launched before it is done."""

    def seconds_since(self, earlier: Self) -> float:
        """Seconds on the GPU's clock between two completed events."""


class Stream(Protocol):
    """The stream on which GPU ops launch their kernels."""

    def record(self) -> Event:
        """Record an event after all work launched so far."""


@dataclass(frozen=True)
class LocalMachine:
    """The content of a local device file, in SI units.

    Attributes:
        name: display name.
        resources: resources that ops may name: `cpu`, `flash` and optionally `gpu`.
        budget: bytes that models may hold.
        workers: threads that read from flash.
        pace: rate limit of flash reads in bytes per second; `None` for no limit.
        idle_watts: idle power; `None` if unknown, in which case only measured energy is reported.
        watts: power above idle, by resource.
    """

    name: str
    resources: frozenset[str]
    budget: float
    workers: int = 1
    pace: float | None = None
    idle_watts: float | None = None
    watts: Mapping[str, float] = field(default_factory=dict)


class Pace:
    """A rate limit for reads that lets a read catch up after the disk delayed the one before.

    Delays of up to `slack` seconds are made up for by the next read, so that the mean rate is reproducible;
    idle time between reads is not.
    """

    def __init__(self, rate: float, slack: float = 0.02) -> None:
        """Rate in bytes per second."""
        self._rate = rate
        self._slack = slack
        self._due = float("-inf")
        self._late = 0.0
        self._end = 0.0
        self._lock = Lock()

    def due(self, start: float, size: float) -> float:
        """The earliest time at which a read of `size` bytes, started at `start`, may end."""
        with self._lock:
            pause = max(0.0, start - self._end)
            self._due = max(self._due, start - max(0.0, self._late - pause)) + size / self._rate
            self._late = 0.0
            return self._due

    def over(self, due: float, end: float) -> None:
        """Note that a read due at `due` ended at `end`."""
        with self._lock:
            self._late, self._end = min(self._slack, max(0.0, end - due)), end


class LocalDevice(Device):
    """The machine that runs this process.

    Attributes:
        flash_pacing: `paced` or `raw`, as noted in records.
        meter: measures the energy that the trace has in place of the spans' joules, if it can.
    """

    def __init__(
        self, machine: LocalMachine, gpu: Stream | None = None, meter: EnergyMeter | None = None
    ) -> None:
        """Create the device; `gpu` is the stream of its GPU, if it has one, `meter` measures its energy."""
        self.machine = machine
        self.meter = meter or EnergyMeter((), "nothing was asked to measure it")
        self.flash_pacing = "raw" if machine.pace is None else "paced"
        self._clock = WallClock()
        memory = Memory(machine.budget, machine.name, now=lambda: self.now)
        main = GPU if gpu is not None else CPU
        super().__init__(machine.name, main, self._clock, memory, machine.resources, machine.idle_watts)
        self._pace = None if machine.pace is None else Pace(machine.pace)
        self._readers = Workers(machine.workers, "flash")
        self._queues: dict[str, Callable[[Op, Future[Any]], None]] = {CPU: self._inline, FLASH: self._read}
        self._gpu = None if gpu is None else _Gpu(gpu, self._clock)
        if self._gpu:
            self._queues[GPU] = self._launch
        self._read_meter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """See `Device`; energy is read at both ends."""
        self._read_meter()
        with super().phase(name):
            yield
        self._read_meter()

    def _read_meter(self, after_s: float = 0.0) -> None:
        """Note what the counters say, if they moved, and the last reading is `after_s` seconds old.

        All readings of a run with a failing counter are dropped.
        """
        readings = self.trace.readings
        if not self.meter.counters or (readings and self.now - readings[-1][0] < after_s):
            return
        moment, joules = self.now, self.meter.joules()
        if joules is None:
            readings.clear()
        elif not readings or (moment > readings[-1][0] and joules > readings[-1][1]):
            readings.append((moment, joules))

    def run(self, op: Op) -> Future[Any]:
        """Queue an op. Without `compute` it takes no time, and its span has 0 FLOPs and bytes."""
        on = self.resource(op.on, op.precision)
        if on != op.on or op.compute is None:
            op = op._replace(on=on) if op.compute else op._replace(on=on, flops=0.0, bytes=0.0)
        done: Future[Any] = Future()
        self._queues[on](op, done)
        return done

    def rest(self, seconds: float) -> None:
        """Sleep, to let the machine cool."""
        self._clock.wait_until(self.now + seconds)

    def close(self) -> None:
        """Stop the workers; jobs that have not started are dropped."""
        self._readers.close()
        if self._gpu:
            self._gpu.waiter.close()

    def _serving(self, wanted: str, precision: str, storage_format: str) -> str:
        if wanted in self.resources:
            return wanted
        return GPU if self._gpu else CPU

    def _inline(self, op: Op, done: Future[Any]) -> None:
        self._clock.inline(lambda: self._compute(op, done), op.priority)

    def _compute(self, op: Op, done: Future[Any]) -> None:
        start = self.now
        try:
            value = op.compute() if op.compute else None
        except Exception as error:
            done.fail(error)
            return
        self._finish(op, done, value, start, self.now)

    def _read(self, op: Op, done: Future[Any]) -> None:
        put = partial(self._readers.put, priority=op.priority)
        self._clock.submit(lambda: self._work(op, done), put)

    def _work(self, op: Op, done: Future[Any]) -> Wake:
        """Run a read on a worker's thread, and delay its end by the rate limit."""
        start = self.now
        try:
            value = op.compute() if op.compute else None
        except Exception as error:
            return partial(done.fail, error)
        if self._pace and op.bytes:
            due = self._pace.due(start, op.bytes)
            self._clock.wait_until(due)
            self._pace.over(due, self.now)
        return partial(self._finish, op, done, value, start, self.now)

    def _launch(self, op: Op, done: Future[Any]) -> None:
        self._clock.inline(lambda: self._launch_now(op, done), op.priority)

    def _launch_now(self, op: Op, done: Future[Any]) -> None:
        assert self._gpu is not None
        launched = self._gpu.stream.record()
        try:
            value = op.compute() if op.compute else None
        except Exception as error:
            done.fail(error)
            return
        ended = self._gpu.stream.record()
        self._clock.submit(lambda: self._await_gpu(op, done, value, launched, ended), self._gpu.waiter.put)

    def _await_gpu(self, op: Op, done: Future[Any], value: Any, launched: Event, ended: Event) -> Wake:
        """Wait for the op's last kernel, on the waiter's thread."""
        assert self._gpu is not None
        try:
            start, end = self._gpu.times(launched, ended)
        except Exception as error:
            return partial(done.fail, error)
        return partial(self._finish, op, done, value, start, end)

    def _finish(self, op: Op, done: Future[Any], value: Any, start: float, end: float) -> None:
        self._read_meter(READ_EACH_S)
        joules = self.machine.watts.get(op.on, 0.0) * (end - start)
        self.trace.spans.append(
            Span(op.on, op.kind, op.name, start, end, op.rows, op.flops, op.bytes, joules)
        )
        done.set(value)


class _Gpu:
    """A stream, the thread that waits for it, and an event whose time on the device's clock is known."""

    def __init__(self, stream: Stream, clock: WallClock) -> None:
        self.stream = stream
        self.waiter = Workers(1, "gpu")
        self._mark = stream.record()
        self._mark.wait()
        self._moment = clock.now

    def times(self, launched: Event, ended: Event) -> tuple[float, float]:
        """Start and end of the work between two events, in seconds of the device's clock; waits for the end.

        Each op is timed from the end of the previous one, which avoids differences of two large numbers.
        """
        ended.wait()
        start = self._moment + launched.seconds_since(self._mark)
        self._moment, self._mark = start + ended.seconds_since(launched), ended
        return start, self._moment


def local_machine(config: Mapping[str, Any]) -> LocalMachine:
    """The machine of a device file with `kind: local`.

    Required: `dram.budget`. Optional: `processors` (`cpu`, or `cpu` and `gpu`), `flash.slots` (workers),
    `pace` (a bandwidth, or null), `power.idle` and watts, as facts like those of emulated devices.

    Raises:
        InputError: a fact is malformed or out of range, the budget is missing or larger than a CPU machine's
            memory, or a processor is not `cpu` or `gpu`.
    """
    name = str(config.get("name", "local"))
    try:
        facts_by_path = {fact.path: fact for fact in facts(config)}
        pace = _pace(config.get("pace"))
    except InputError as wrong:
        raise InputError(f"{name}: {wrong}") from None
    processors = set(config.get("processors") or {CPU: None})
    if CPU not in processors or processors - {CPU, GPU}:
        raise InputError(
            f"{name}: processors are {', '.join(sorted(processors))}; choices: cpu, or cpu and gpu"
        )
    if "dram.budget" not in facts_by_path:
        raise InputError(f"{name}: the device file lacks dram.budget, the bytes that models may hold")
    budget = facts_by_path["dram.budget"].value
    if processors == {CPU} and budget > (memory := physical_memory()):
        raise InputError(
            f"{name}: dram.budget is {budget / 1e9:.1f} GB, but this machine has {memory / 1e9:.1f} GB of "
            "memory; set device.dram.budget.value lower"
        )
    workers = facts_by_path["flash.slots"].value if "flash.slots" in facts_by_path else 1
    watts = {resource: facts_by_path.get(path) for resource, path in _WATTS.items()}
    return LocalMachine(
        name=name,
        resources=frozenset({FLASH, *processors}),
        budget=budget,
        workers=int(workers),
        pace=pace,
        idle_watts=facts_by_path["power.idle"].value if "power.idle" in facts_by_path else None,
        watts={resource: fact.value for resource, fact in watts.items() if fact},
    )


_WATTS = {CPU: "processors.cpu.watts", GPU: "processors.gpu.watts", FLASH: "flash.watts"}


def _pace(entry: Any) -> float | None:
    return None if entry is None else read_fact("pace", entry, KINDS["bandwidth"]).value


def physical_memory() -> float:
    """This machine's memory in bytes."""
    return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")


def local_device(config: Mapping[str, Any], gpu: Stream | None = None, gpu_uuid: str = "") -> LocalDevice:
    """The device of a file with `kind: local`; `gpu` and its UUID are required if the file has a GPU.

    Raises:
        InputError: as `local_machine`; or the file has a GPU and `gpu` is None.
    """
    machine = local_machine(config)
    if GPU in machine.resources and gpu is None:
        raise InputError(f"device {machine.name!r} needs a GPU, and this machine has none; choose local_cpu")
    if GPU in machine.resources:
        return LocalDevice(machine, gpu, open_meter(gpu_uuid) if gpu_uuid else None)
    return LocalDevice(machine, meter=open_meter())
