"""Measures this machine: its processor by probes, its disk, memory and power; a device file and engine files.

Owns what is measured for the files and how long. Must not know where they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import NamedTuple

from repro.device.clock import WallClock
from repro.device.local import LocalDevice, LocalMachine, physical_memory
from repro.device.op import CPU, FLASH, GPU
from repro.device.probing import measure
from repro.libraries import torch
from repro.models.calibration.fit import FittedCosts, fit
from repro.models.calibration.machine_speed import memory_bandwidth
from repro.models.calibration.passes import cost_of
from repro.models.calibration.probe import SHAPES, Kernels, LayerProbe, PartTiming, probe_config
from repro.models.calibration.sizes import Sizes, TimedProbe, deciding_sizes
from repro.models.calibration.written import Section, best_rates, curve, engine_of_costs, fact
from repro.models.runtime.cuda import cuda_stream
from repro.models.transformer.config import DecoderConfig
from repro.records.build_cache import require_space

Say = Callable[[str], None]

REQUESTS = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
"""Bytes of a read request."""
GIGA = 1e9


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        rows: numbers of tokens of a pass.
        contexts: numbers of cached tokens.
        shapes: probes' shapes.
        rounds: passes of each setting.
        longest: seconds of a pass above which it is timed once.
        footprint: bytes of a probe's layers together, more than a processor's caches.
        file: bytes of the file that is read.
        seconds: per figure of disk, memory and power.
    """

    rows: tuple[int, ...] = (1, 2, 4, 5, 8, 16, 32, 64, 256)
    contexts: tuple[int, ...] = (64, 1024)
    shapes: tuple[str, ...] = tuple(SHAPES)
    rounds: int = 5
    longest: float = 1.0
    footprint: float = 96e6
    file: int = 1 << 30
    seconds: float = 0.3


FULL = Effort()
QUICK = Effort((1, 8, 64), (16, 128), ("small", "middle"), 1, 0.0, 0.0, 16 << 20, 0.02)


def kernels_of(on: str) -> list[Kernels]:
    """What is timed: on a CPU each dtype as layers in memory and as streamed ones have it."""
    if on == GPU:
        return [Kernels(dtype) for dtype in ("float32", "bfloat16")]
    return [Kernels(dtype, packed) for dtype in ("float32", "bfloat16", "int4") for packed in (True, False)]


def open_local(on: str) -> LocalDevice:
    """This machine's CPU or GPU, without a pace of reads."""
    stream = cuda_stream() if on == GPU else None
    return LocalDevice(LocalMachine("here", frozenset({CPU, on, FLASH}), budget=GIGA), stream)


ROOM = 0.125
"""The share of the memory that probes may take together."""

OpenProbe = Callable[[DecoderConfig, Kernels, Sequence[int], LocalDevice], TimedProbe]


@dataclass
class Timings:
    """What probes took.

    Attributes:
        parts: all timed parts.
        notes: by kernels, what could not be told apart.
    """

    parts: list[PartTiming] = field(default_factory=list)
    notes: dict[Kernels, str] = field(default_factory=dict)


def time_probes(on: str, effort: Effort, say: Say, open_probe: OpenProbe = LayerProbe) -> Timings:
    """Time all probes of all kernels; each round asks the settings of the same kernels in another order.

    Raises:
        InputError: see `deciding_sizes`.
    """
    local, timings = open_local(on), Timings()
    try:
        for kernels in kernels_of(on):
            say(f"passes of {len(effort.shapes)} shapes, {kernels.label}")
            sizes = _sizes(effort, kernels, local, open_probe, ROOM * memory_of(on))
            if (most := len(sizes.probes)) > len(effort.shapes):
                say(f"and {most - len(effort.shapes)} larger, up to width {sizes.probes[-1].config.hidden}")
            if sizes.note:
                timings.notes[kernels] = sizes.note
            timings.parts += _passes(sizes, effort)
    finally:
        local.close()
    return timings


def _sizes(effort: Effort, kernels: Kernels, local: LocalDevice, open_probe: OpenProbe, room: float) -> Sizes:
    """The probes of some kernels: the effort's shapes, and larger ones where these show launches alone."""

    def sized(shape: DecoderConfig) -> tuple[DecoderConfig, float]:
        config = probe_config(shape, kernels, effort.footprint)
        return config, cost_of(config, kernels.dtype).model_bytes

    taken: list[float] = []

    def opened(shape: DecoderConfig) -> TimedProbe:
        config, size = sized(shape)
        taken.append(size)
        return open_probe(config, kernels, effort.contexts, local)

    def fits(shape: DecoderConfig) -> bool:
        return sum(taken) + sized(shape)[1] <= room

    return deciding_sizes([SHAPES[name] for name in effort.shapes], effort.rows, opened, fits)


def _passes(sizes: Sizes, effort: Effort) -> Iterator[PartTiming]:
    chance = Random(0)
    settings = [(p, r, c) for p in sizes.probes for r in sizes.rows for c in effort.contexts]
    for probe, rows, context in settings[:: len(sizes.rows)]:
        list(probe.time(rows, context))  # memory is taken, kernels are chosen
    for _ in range(effort.rounds):
        chance.shuffle(settings)
        slow = []
        for setting in settings:
            probe, rows, context = setting
            clock = WallClock()
            yield from probe.time(rows, context)
            if clock.now > effort.longest:
                slow.append(setting)
        settings = [setting for setting in settings if setting not in slow]


def flash_section(folder: Path, effort: Effort, say: Say) -> Section:
    """The storage section: one thread reading in order, by request size."""
    folder.mkdir(parents=True, exist_ok=True)
    require_space(folder, 2 * effort.file, "the file that is read to measure the disk")
    say(f"disk: writing and reading {effort.file >> 20} MiB in {folder}")
    with measure.scratch_file(folder, effort.file) as source:
        rates = [
            measure.read_rate(source, effort.file, request, 2 * effort.seconds) / GIGA for request in REQUESTS
        ]
        way = source.way
    # A disk's speed drifts while it is measured; a large request is never slower than its small parts.
    points = list(zip(REQUESTS, accumulate(rates, max), strict=True))
    latency = points[0][0] / (points[0][1] * GIGA)
    return {
        "bandwidth": curve(points, "GB/s", note=f"one thread, in order; pages {way}"),
        "latency": fact(latency * 1e6, "us", note="of a request of 4 KiB"),
        "watts": fact(2.0, "W", "assumed", "an SSD or a phone's flash that reads"),
    }


def memory_of(on: str) -> float:
    """Bytes of memory of this machine, or of its GPU."""
    return float(torch.cuda.get_device_properties(0).total_memory) if on == GPU else physical_memory()


def power_facts(on: str, seconds: float, say: Say) -> tuple[Section, Section]:
    """Idle power, and power above idle when computing; only some machines' CPU packages can be measured."""
    a = torch.rand(1024, 1024)
    pause, clock = 5 * seconds, WallClock()
    idle = measure.watts(pause, lambda: clock.wait_until(clock.now + pause))
    busy = measure.watts(pause, lambda: a @ a)
    if idle is None or busy is None or on == GPU:
        say("power: no counter can be read; idle power and watts are assumed")
        above = 200.0 if on == GPU else 3.0 * torch.get_num_threads()
        note = "no power counter was read"
        return fact(5.0, "W", "assumed", note), fact(above, "W", "assumed", note)
    say(f"power: {idle:.1f} W idle, {busy:.1f} W computing")
    note = "RAPL, the processor packages alone"
    return fact(idle, "W", note=note), fact(max(0.0, busy - idle), "W", note=f"{note}, above idle")


def device_section(
    name: str, on: str, costs: FittedCosts, effort: Effort, scratch: Path, say: Say
) -> Section:
    """The device file: what the silicon reaches, disk, memory and power."""
    best = best_rates(costs)
    lacking = fact(best["fp32"] / GIGA, "GFLOP/s", "assumed", "as fp32: nothing here computes in it")
    peak = {arithmetic: lacking for arithmetic in ("fp32", "fp16", "int8")} | {
        arithmetic: fact(rate / GIGA, "GFLOP/s", note="best rate of a layer or an output projection")
        for arithmetic, rate in best.items()
    }
    read = memory_bandwidth("cuda" if on == GPU else "cpu", seconds=effort.seconds)
    say(f"memory: {read / GIGA:.1f} GB/s")
    whole = memory_of(on)
    idle, watts = power_facts(on, effort.seconds, say)
    bandwidth = fact(read / GIGA, "GB/s", note="the faster of reading and copying")
    return {
        "name": name,
        "kind": "emulated",
        "processors": {on: {"peak": peak, "bandwidth": bandwidth, "watts": watts}},
        "flash": flash_section(scratch, effort, say),
        "dram": {
            "capacity": fact(whole / GIGA, "GB"),
            "budget": fact(0.8 * whole / GIGA, "GB", "assumed", "four fifths of the capacity"),
            "bandwidth": bandwidth,
        },
        "power": {"idle": idle},
    }


def engine_sections(name: str, on: str, costs: FittedCosts) -> dict[str, Section]:
    """Engine files by the ending of their names: of layers in memory, and on a CPU of streamed ones."""
    found = {"": engine_of_costs(name, costs, on, note="repro's own runtime, layers in memory")}
    if any(not kernels.packed for kernels in costs.layers):
        note = "repro's own runtime, layers streamed from disk: weights are not reordered"
        found["_streamed"] = engine_of_costs(f"{name}, streamed", costs, on, packed=False, note=note)
    return found


class MeasuredMachine(NamedTuple):
    """A machine that was measured.

    Attributes:
        device: its device file.
        engines: its engine files, by the ending of their names.
        costs: the fit.
        notes: what could not be measured, a sentence each.
    """

    device: Section
    engines: dict[str, Section]
    costs: FittedCosts
    notes: list[str]


def calibrate(name: str, on: str, effort: Effort, scratch: Path, say: Say) -> MeasuredMachine:
    """Measure this machine.

    Raises:
        InputError: passes take no longer the larger they are, and differ too much to say why.
    """
    timings = time_probes(on, effort, say)
    costs = fit(timings.parts)
    notes = [f"{kernels.label}: {note}" for kernels, note in timings.notes.items()]
    device = device_section(name, on, costs, effort, scratch, say)
    return MeasuredMachine(device, engine_sections(name, on, costs), costs, notes)


def spread_of(errors: Sequence[float]) -> str:
    """Median and largest error of the fit, in words."""
    wrong = sorted(map(abs, errors))
    return f"median {wrong[len(wrong) // 2]:.0%}, worst {wrong[-1]:.0%}"
