"""Measures a group of cells in turns: probes that calibrate, each cell, and each cell again as a null arm.

Owns the order of measurements and what is stored of them. Must not know fits, predictions or tables. Rounds
are shuffled, so that a drift of the machine meets all alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from repro.core.paths import conf_dir
from repro.device.clock import WallClock
from repro.device.direct_io import DirectFile
from repro.device.local import LocalDevice, local_machine
from repro.device.probing.measure import read_rate
from repro.libraries import torch
from repro.models.calibration.board_calibrator import CONTEXTS as PROBE_CONTEXTS
from repro.models.calibration.board_calibrator import ROWS as PROBE_ROWS
from repro.models.calibration.machine_files import memory_bandwidth
from repro.models.calibration.passes import PassTimer, cost_of
from repro.models.calibration.probe import SHAPES, Kernels, LayerProbe, PartTiming, probe_config
from repro.models.checkpoints.checkpoint import Checkpoint, open_checkpoint
from repro.models.streaming.layer_streaming import LayerReader, layer_file
from repro.models.transformer import weights
from repro.models.transformer.weights import decoder_config
from repro.records.record import write_atomically
from workshop.validation.this_machine.cells import (
    CONTEXTS,
    LLAMA_CPP,
    OURS,
    ROWS,
    CellGroup,
    MachineCell,
    cells_of,
)
from workshop.validation.this_machine.gguf_files import q4_0_file
from workshop.validation.this_machine.llama_cpp import LlamaCppPasses

Say = Callable[[str], None]

ARMS = ("measured", "null")
PROBE = "probe"
"""The arm of llama.cpp's passes from which other models' are predicted: rows and contexts of probes."""
REQUEST = 4 << 20
"""Bytes of a read request of streamed layers."""


@dataclass(frozen=True)
class MeasuringPlan:
    """Settings of a run.

    Attributes:
        rounds: passes of each cell in each arm at least, one or more a round.
        threads: of torch and of llama.cpp.
        pace: bytes per second that reads are held to.
        footprint: bytes of a probe's layers together, more than a processor's caches.
        every: whether all streamed cells are measured.
        least: seconds that an arm of a cell takes in a round at least, by more passes of a fast cell.
        most: passes of a cell in an arm of a round at most.
    """

    rounds: int = 5
    threads: int = 1
    pace: float = 0.5e9
    footprint: float = 96e6
    every: bool = False
    least: float = 0.1
    most: int = 3


@dataclass
class MeasuredGroup:
    """What a group's measurement gave.

    Attributes:
        group: its cells' group.
        threads: of the plan.
        seconds: that it took, loading included.
        disk: bytes per second of reading the streamed layers without a pace, once a round.
        bandwidth: bytes per second that memory gave before it.
        bits: bits a weight of the file that llama.cpp read; 0 for ours.
        passes: rows, context, arm and seconds of each timed pass.
        timings: of the probes, without their kernels: the group has them.
    """

    group: CellGroup
    threads: int
    seconds: float = 0.0
    disk: list[float] = field(default_factory=list)
    bandwidth: float = 0.0
    bits: float = 0.0
    passes: list[tuple[int, int, str, float]] = field(default_factory=list)
    timings: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def kernels(self) -> Kernels:
        """What computes its cells."""
        return Kernels(self.group.dtype, packed=not self.group.streamed)

    def probe_timings(self) -> Iterator[PartTiming]:
        """The probes' timings."""
        return (PartTiming(self.kernels, *one) for one in self.timings)

    def cells(self) -> list[MachineCell]:
        """The cells that were measured, in order of contexts and rows."""
        settings = {(context, rows) for rows, context, arm, _ in self.passes if arm in ARMS}
        return [MachineCell(self.group, rows, context) for context, rows in sorted(settings)]

    def has_all(self, plan: MeasuringPlan) -> bool:
        """Whether it has what the plan asks of its group."""
        cells = cells_of(self.group, plan.every)
        return self.threads == plan.threads and all(
            len(self.arm(cell, arm)) >= plan.rounds for cell in cells for arm in ARMS
        )

    def arm(self, cell: MachineCell, arm: str) -> list[float]:
        """Seconds of a cell's passes in an arm."""
        asked = (cell.rows, cell.context, arm)
        return [seconds for *key, seconds in self.passes if tuple(key) == asked]

    def write(self, folder: Path) -> None:
        """Write it as JSON."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{self.group.id}.json", json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path, group: CellGroup) -> MeasuredGroup | None:
        """What an earlier run wrote of a group, if it did."""
        path = folder / f"{group.id}.json"
        if not path.is_file():
            return None
        stored = json.loads(path.read_text(encoding="utf-8"))
        for name in ("passes", "timings"):
            stored[name] = [tuple(one) for one in stored[name]]
        return cls(**{**stored, "group": CellGroup(**stored["group"])})


class MachineBench:
    """Measures groups one after the other; probes of the same kernels are kept for the next group."""

    def __init__(self, plan: MeasuringPlan, say: Say) -> None:
        self.plan = plan
        self._say = say
        self._probes: tuple[Kernels, list[LayerProbe]] | None = None
        torch.set_num_threads(plan.threads)

    def measure(self, groups: Sequence[CellGroup]) -> list[MeasuredGroup]:
        """Measure the cells of one of our groups with the probes of its kernels, or llama.cpp's groups."""
        clock, speed = WallClock(), memory_bandwidth()
        found = [MeasuredGroup(group, self.plan.threads, bandwidth=speed) for group in groups]
        if groups[0].engine == OURS:
            for one in found:
                self._measure_ours(one, cells_of(one.group, self.plan.every))
        else:
            self._measure_llama_cpp(found)
        for one in found:
            one.seconds = clock.now / len(found)
        return found

    def _measure_ours(self, found: MeasuredGroup, cells: Sequence[MachineCell]) -> None:
        group, plan = found.group, self.plan
        local = local_device(plan.pace)
        if self._probes is None or self._probes[0] != found.kernels:
            self._probes = None  # frees the old ones first
            self._probes = found.kernels, [self._probe(name, found.kernels) for name in SHAPES]
        folder = checkpoint_folder(group.model)
        source = LayerReader(layer_file(folder, group.dtype), slot_count=2) if group.streamed else None
        decoder = weights.load(folder, group.dtype, is_resident=not group.streamed)
        self._say("loaded")
        cost = cost_of(decoder.config, group.dtype)
        timer = PassTimer(local, cost, CONTEXTS, decoder, source, group.streamed)
        chance = Random(group.id)
        for round_ in range(plan.rounds):
            tasks = [_pass_task(found, cell, arm, timer, plan) for cell in cells for arm in ARMS]
            if round_ == 0:
                settings = product(self._probes[1], PROBE_ROWS, PROBE_CONTEXTS)
                tasks += [_probe_task(found, *setting) for setting in settings]
                for context in CONTEXTS:
                    timer.time(4, context)  # memory is taken, kernels are chosen
            if source is not None:
                tasks.append(lambda: found.disk.append(disk_rate(source.file.path)))
            chance.shuffle(tasks)
            for task in tasks:
                task()
            self._say(f"round {round_ + 1} of {plan.rounds}")
        if source is not None:
            source.close()
        local.close()

    def _probe(self, name: str, kernels: Kernels) -> LayerProbe:
        probe = LayerProbe(
            probe_config(SHAPES[name], kernels, self.plan.footprint),
            kernels,
            PROBE_CONTEXTS,
            local_device(self.plan.pace),
        )
        for context in PROBE_CONTEXTS:
            for _ in probe.time(4, context):
                pass
        return probe

    def _measure_llama_cpp(self, found: Sequence[MeasuredGroup]) -> None:
        """Measure all models in turns, since each one is predicted from the others' passes as probes."""
        opened = [self._open_llama_cpp(one) for one in found]
        self._say("loaded")
        chance = Random(LLAMA_CPP)
        for context in (*PROBE_CONTEXTS, *CONTEXTS):  # one context is cached at a time
            is_probed = context in PROBE_CONTEXTS
            asked = [
                (one, server, MachineCell(one.group, rows, context), arm)
                for one, server in zip(found, opened, strict=True)
                for rows in (PROBE_ROWS if is_probed else ROWS)
                for arm in ((PROBE,) if is_probed else ARMS)
            ]
            for server in opened:
                server.seconds(1, context)
            for _ in range(1 if is_probed else self.plan.rounds):
                chance.shuffle(asked)
                for one, server, cell, arm in asked:
                    _repeat(one, cell, arm, partial(server.seconds, cell.rows, context), self.plan)
            self._say(f"context {context}")

    def _open_llama_cpp(self, one: MeasuredGroup) -> LlamaCppPasses:
        path = q4_0_file(one.group.model)
        config = decoder_config(checkpoint_folder(one.group.model))
        one.bits = 8.0 * path.stat().st_size / config.shape.parameters
        return LlamaCppPasses(path, self.plan.threads, max(PROBE_CONTEXTS) + max(PROBE_ROWS))


def _pass_task(
    found: MeasuredGroup, cell: MachineCell, arm: str, timer: PassTimer, plan: MeasuringPlan
) -> Callable[[], None]:
    def seconds() -> float:
        return timer.time(cell.rows, cell.context, cell.last_only).seconds

    return lambda: _repeat(found, cell, arm, seconds, plan)


def _repeat(
    found: MeasuredGroup, cell: MachineCell, arm: str, seconds: Callable[[], float], plan: MeasuringPlan
) -> None:
    """Time a cell once, or more often if it is fast."""
    total, count = 0.0, 0
    while not count or (total < plan.least and count < plan.most):
        took = seconds()
        found.passes.append((cell.rows, cell.context, arm, took))
        total, count = total + took, count + 1


def _probe_task(found: MeasuredGroup, probe: LayerProbe, rows: int, context: int) -> Callable[[], None]:
    return lambda: found.timings.extend(tuple(t[1:]) for t in probe.time(rows, context))


def local_device(pace: float) -> LocalDevice:
    """This machine's CPU, reading at a pace in bytes per second."""
    budget = {"budget": {"value": 1, "unit": "GB", "source": "assumed"}}  # nothing is reserved in it
    held = {"value": pace / 1e9, "unit": "GB/s", "source": "assumed"}
    return LocalDevice(local_machine({"dram": budget, "pace": held}))


def disk_rate(path: Path, seconds: float = 1.0) -> float:
    """Bytes per second of reading a file in order, past the page cache."""
    source = DirectFile(path)
    try:
        return read_rate(source, path.stat().st_size, REQUEST, seconds)
    finally:
        source.close()


def checkpoint_folder(model: str) -> Path:
    """The folder of one of the checkpoints, downloaded if it is not there."""
    return open_checkpoint(Checkpoint.from_yaml(conf_dir() / "model" / "checkpoint" / f"{model}.yaml"))
