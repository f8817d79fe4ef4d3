"""Measures this machine: its processor by probes, its disk, memory and power; a device file and engine files.

Owns what is measured for the files and how long. Must not know where they are written.

On a fast GPU small layers take as long as their kernels take to launch, and no rate follows from them. So
probes grow in width, then passes in rows, until the largest takes twice as long as the smallest, whatever the
noise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import NamedTuple

from repro.core.errors import InputError
from repro.device.clock import WallClock
from repro.device.energy import open_meter
from repro.device.local import LocalDevice, LocalMachine, physical_memory
from repro.device.op import CPU, FLASH, GPU
from repro.device.probing import measure
from repro.libraries import torch
from repro.models.calibration import board_calibrator
from repro.models.calibration.fit import FittedCosts
from repro.models.calibration.passes import cost_of
from repro.models.calibration.probe import LAYER, SHAPES, Kernels, LayerProbe, PartTiming, probe_config
from repro.models.calibration.sections import GIGA, Section, best_rates, curve, engine_of_costs, fact
from repro.models.runtime.cuda import cuda_stream, cuda_uuid
from repro.models.transformer.config import DecoderConfig
from repro.records.build_cache import require_space

REQUEST_BYTES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
"""Bytes of a read request."""
ASSUMED_READ = 0.1e9
"""Bytes per second of a storage that could not be measured: an SD card's."""
ROOM = 0.125
"""The share of the memory that probes may take together."""
FOOTPRINT_BYTES = 256 << 20
"""Bytes that are read or copied: more than caches hold."""
DECISIVE_RATIO = 2.0
"""How many times as long a pass of the largest probe takes as one of the smallest where weights decide."""
MORE_ROWS = 1024, 4096
"""Rows of a pass that are tried where one row never shows the weights."""
TRIES = 5
NOISE_RATIO = 1.5
"""Upper over lower quartile of the same pass from which its time is noise."""


def say(text: str) -> None:
    """Tell on stderr what happens; stdout has the files' paths."""
    print(text, file=sys.stderr, flush=True)


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

    rows: tuple[int, ...] = board_calibrator.ROWS
    contexts: tuple[int, ...] = board_calibrator.CONTEXTS
    shapes: tuple[str, ...] = tuple(SHAPES)
    rounds: int = board_calibrator.ROUNDS
    longest: float = 1.0
    footprint: float = 96e6
    file: int = 1 << 30
    seconds: float = 0.3


FULL_EFFORT = Effort()
QUICK_EFFORT = Effort((1, 8, 64), (16, 128), ("small", "middle"), 1, 0.0, 0.0, 16 << 20, 0.02)


def kernels_of(processor: str) -> list[Kernels]:
    """What is timed: on a CPU each dtype as layers in memory and as streamed ones have it."""
    if processor == GPU:
        return [Kernels(dtype) for dtype in ("float32", "bfloat16")]
    return [
        Kernels(dtype, is_packed) for dtype in ("float32", "bfloat16", "int4") for is_packed in (True, False)
    ]


def open_local(processor: str) -> LocalDevice:
    """This machine's CPU or GPU, without a pace of reads."""
    stream = cuda_stream() if processor == GPU else None
    return LocalDevice(LocalMachine("here", frozenset({CPU, processor, FLASH}), budget=GIGA), stream)


OpenProbe = Callable[[DecoderConfig, Kernels, Sequence[int], LocalDevice], LayerProbe]


@dataclass
class Timings:
    """What probes took.

    Attributes:
        parts: all timed parts.
        notes: by kernels, what could not be told apart.
    """

    parts: list[PartTiming] = field(default_factory=list)
    notes: dict[Kernels, str] = field(default_factory=dict)


def time_probes(processor: str, effort: Effort, open_probe: OpenProbe = LayerProbe) -> Timings:
    """Time all probes of all kernels; each round times the settings of the same kernels in another order.

    Raises:
        InputError: see `deciding_sizes`.
    """
    local_device, timings = open_local(processor), Timings()
    try:
        for kernels in kernels_of(processor):
            say(f"passes of {len(effort.shapes)} shapes, {kernels.label}")
            sizes = deciding_sizes(processor, effort, kernels, local_device, open_probe)
            if (count := len(sizes.probes)) > len(effort.shapes):
                say(f"and {count - len(effort.shapes)} larger, up to width {sizes.probes[-1].config.hidden}")
            if sizes.note:
                timings.notes[kernels] = sizes.note
            timings.parts += _passes(sizes, effort)
    finally:
        local_device.close()
    return timings


class Sizes(NamedTuple):
    """What is probed.

    Attributes:
        probes: from the smallest to the largest.
        rows: numbers of rows of a pass.
        hidden: rows below which launches hide the weights: 0 if they never do, None if they always do.
    """

    probes: list[LayerProbe]
    rows: tuple[int, ...]
    hidden: int | None

    @property
    def note(self) -> str:
        """What could not be told apart, for readers of the files; "" if launches and weights could."""
        if self.hidden == 0:
            return ""
        widths = f"layers of width {self.probes[0].config.hidden} to {self.probes[-1].config.hidden}"
        passes = f"passes of fewer than {self.hidden} rows" if self.hidden else "all passes"
        return (
            f"of {passes} only launches could be measured: {widths} took as long as one another. "
            "Rates there are the least that the hardware has"
        )


def double_width(config: DecoderConfig) -> DecoderConfig:
    """A layer of twice the width, hence four times the weights."""
    widths = {name: 2 * getattr(config, name) for name in ("hidden", "heads", "kv_heads", "intermediate")}
    return replace(config, **widths)


def deciding_sizes(
    processor: str, effort: Effort, kernels: Kernels, local_device: LocalDevice, open_probe: OpenProbe
) -> Sizes:
    """Open a probe of each of the effort's shapes, and larger ones until weights decide or memory is short.

    One more number of rows is measured if only it shows weights.

    Raises:
        InputError: times of the same pass differ by more than sizes make of them.
    """

    def open_shape(shape: DecoderConfig) -> LayerProbe:
        config = probe_config(shape, kernels, effort.footprint)
        return open_probe(config, kernels, effort.contexts, local_device)

    def fits(shape: DecoderConfig) -> bool:
        configs = [*(probe.config for probe in probes), probe_config(shape, kernels, effort.footprint)]
        return sum(cost_of(c, kernels.dtype).model_bytes for c in configs) <= ROOM * memory_of(processor)

    probes = [open_shape(SHAPES[name]) for name in effort.shapes]
    while not _decides(probes, 1) and fits(larger_shape := double_width(probes[-1].config)):
        probes.append(open_shape(larger_shape))
    if _decides(probes, 1):
        return Sizes(probes, effort.rows, 0)
    for row_count in MORE_ROWS:
        if _decides(probes, row_count):
            return Sizes(probes, (*effort.rows, row_count), row_count)
    _require_steady(probes)
    return Sizes(probes, effort.rows, None)


def _quartiles(probe: LayerProbe, row_count: int) -> tuple[float, float]:
    def seconds() -> float:
        return next(
            timing.seconds for timing in probe.time(row_count, probe.contexts[0]) if timing.part == LAYER
        )

    seconds()  # kernels are chosen, memory is taken
    durations = sorted(seconds() for _ in range(TRIES))
    return durations[TRIES // 4], durations[-1 - TRIES // 4]


def _decides(probes: Sequence[LayerProbe], row_count: int) -> bool:
    (_, smallest_seconds), (largest_seconds, _) = (
        _quartiles(probes[0], row_count),
        _quartiles(probes[-1], row_count),
    )
    return largest_seconds >= DECISIVE_RATIO * smallest_seconds


def _require_steady(probes: Sequence[LayerProbe]) -> None:
    quartiles = [_quartiles(probe, 1) for probe in probes]
    if all(upper < NOISE_RATIO * lower for lower, upper in quartiles):
        return
    low_s, high_s = min(lower for lower, _ in quartiles), max(upper for _, upper in quartiles)
    raise InputError(
        f"layers of width {probes[0].config.hidden} to {probes[-1].config.hidden}, in passes of 1 to "
        f"{MORE_ROWS[-1]} rows, did not take longer the larger they were, and equal passes took "
        f"{low_s * 1e6:.0f} to {high_s * 1e6:.0f} us: something else disturbs the measurement; measure again "
        "while nothing else runs"
    )


def _passes(sizes: Sizes, effort: Effort) -> Iterator[PartTiming]:
    random = Random(0)
    settings = [(p, r, c) for p in sizes.probes for r in sizes.rows for c in effort.contexts]
    for probe, row_count, context_length in settings[:: len(sizes.rows)]:
        list(probe.time(row_count, context_length))  # memory is taken, kernels are chosen
    for _ in range(effort.rounds):
        random.shuffle(settings)
        slow_settings = []
        for setting in settings:
            probe, row_count, context_length = setting
            clock = WallClock()
            yield from probe.time(row_count, context_length)
            if clock.now > effort.longest:
                slow_settings.append(setting)
        settings = [setting for setting in settings if setting not in slow_settings]


def flash_section(folder: Path, effort: Effort) -> Section:
    """The storage section: one thread reading in order, by request size."""
    folder.mkdir(parents=True, exist_ok=True)
    require_space(folder, 2 * effort.file, "the file that is read to measure the disk")
    say(f"disk: writing and reading {effort.file >> 20} MiB in {folder}")
    with measure.scratch_file(folder, effort.file) as file:
        rates = [
            measure.read_rate(file, effort.file, request, 2 * effort.seconds) for request in REQUEST_BYTES
        ]
        page_access = file.way
    return storage_section(
        list(zip(REQUEST_BYTES, rates, strict=True)), f"one thread, in order; pages {page_access}"
    )


def storage_section(points: Sequence[tuple[int, float]], note: str) -> Section:
    """The storage section of bytes per second by request size; an assumed one without any, and why."""
    watts = fact(2.0, "W", "assumed", "an SSD or a phone's flash that reads")
    if not points:
        return {"bandwidth": fact(ASSUMED_READ / GIGA, "GB/s", "assumed", note), "watts": watts}
    requests, rates = zip(*points, strict=True)
    # A disk's speed drifts while it is measured; a large request is never slower than its small parts.
    rising = list(accumulate(rates, max))
    return {
        "bandwidth": curve(zip(requests, (rate / GIGA for rate in rising), strict=True), "GB/s", note=note),
        "latency": fact(requests[0] / rising[0] * 1e6, "us", note=f"of a request of {requests[0] >> 10} KiB"),
        "watts": watts,
    }


def memory_of(processor: str) -> float:
    """Bytes of memory of this machine, or of its GPU."""
    return float(torch.cuda.get_device_properties(0).total_memory) if processor == GPU else physical_memory()


def power_facts(processor: str, seconds: float) -> tuple[Section, Section] | None:
    """Idle power, and power above idle when computing; None for a machine without counters."""
    device = torch.device("cuda" if processor == GPU else "cpu")
    matrix, wait_for_device = torch.rand(1024, 1024, device=device), _waiting(device)
    meter = open_meter(cuda_uuid() if processor == GPU else "")
    pause, clock = 5 * seconds, WallClock()
    idle_w = measure.watts(pause, lambda: clock.wait_until(clock.now + pause), meter)
    busy_w = measure.watts(pause, lambda: (matrix @ matrix, wait_for_device()), meter)
    if idle_w is None or busy_w is None:
        say("power: no counter can be read, so emulated cells have no joules")
        return None
    say(f"power: {idle_w:.1f} W idle, {busy_w:.1f} W computing")
    note = meter.sentence
    return fact(idle_w, "W", note=note), fact(max(0.0, busy_w - idle_w), "W", note=f"{note}, above idle")


def device_section(name: str, processor: str, costs: FittedCosts, effort: Effort, scratch: Path) -> Section:
    """The device file: what the silicon reaches, disk, memory and power."""
    read_rate = memory_bandwidth("cuda" if processor == GPU else "cpu", seconds=effort.seconds)
    say(f"memory: {read_rate / GIGA:.1f} GB/s")
    power = power_facts(processor, effort.seconds)
    flash = flash_section(scratch, effort)
    section = machine_section(name, processor, costs, read_rate, memory_of(processor), flash, power)
    peak = section["processors"][processor]["peak"]
    fallback = fact(
        best_rates(costs)["fp32"] / GIGA, "GFLOP/s", "assumed", "as fp32: nothing here computes in it"
    )
    for arithmetic in ("fp32", "fp16", "int8"):
        peak.setdefault(arithmetic, fallback)
    return section


def machine_section(
    name: str,
    processor: str,
    costs: FittedCosts,
    read_rate: float,
    capacity: float,
    flash: Section,
    power: tuple[Section, Section] | None,
) -> Section:
    """A device file of what was measured.

    Args:
        name: of the machine.
        processor: that was measured.
        costs: whose best rates are its peaks.
        read_rate: bytes per second that its memory gives.
        capacity: bytes of its memory.
        flash: its storage.
        power: idle, and above idle when it computes; None if it was not measured.
    """
    peak = {
        arithmetic: fact(rate / GIGA, "GFLOP/s", note="best rate of a layer or an output projection")
        for arithmetic, rate in best_rates(costs).items()
    }
    bandwidth = fact(read_rate / GIGA, "GB/s", note="the faster of reading and copying")
    entries: Section = {"peak": peak, "bandwidth": bandwidth}
    idle: Section = {}
    if power:
        idle, entries["watts"] = {"power": {"idle": power[0]}}, power[1]
    return {
        "name": name,
        "kind": "emulated",
        "processors": {processor: entries},
        "flash": flash,
        "dram": {
            "capacity": fact(capacity / GIGA, "GB"),
            "budget": fact(0.8 * capacity / GIGA, "GB", "assumed", "four fifths of the capacity"),
            "bandwidth": bandwidth,
        },
        **idle,
    }


def engine_sections(name: str, on: str, costs: FittedCosts) -> dict[str, Section]:
    """Engine files, as `engine` of layers in memory, and on a CPU as `engine_streamed` of streamed ones."""
    engines = {"engine": engine_of_costs(name, costs, on, note="repro's own runtime, layers in memory")}
    if any(not kernels.packed for kernels in costs.layers):
        note = "repro's own runtime, layers streamed from disk: weights are not reordered"
        streamed_engine = engine_of_costs(f"{name}, streamed", costs, on, is_packed=False, note=note)
        engines["engine_streamed"] = streamed_engine
    return engines


def _waiting(device: torch.device) -> Callable[[], object]:
    """A function that waits until the device has done what it was given."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def read_bandwidth(device: torch.device, footprint: int = FOOTPRINT_BYTES, seconds: float = 0.3) -> float:
    """Bytes per second of reading `footprint` bytes, as a sum."""
    x = torch.ones(footprint // 4, device=device)
    wait_for_device = _waiting(device)
    return x.nbytes / measure.seconds_each(lambda: (x.sum(), wait_for_device()), seconds)


def memory_bandwidth(processor: str = "cpu", footprint: int = FOOTPRINT_BYTES, seconds: float = 0.3) -> float:
    """Bytes per second that memory gives: reading or copying, whichever is faster."""
    device = torch.device(processor)
    wait_for_device = _waiting(device)
    x = torch.ones(footprint // 4, device=device)
    copy_of_x = torch.empty_like(x)
    copying = measure.seconds_each(lambda: (copy_of_x.copy_(x), wait_for_device()), seconds)
    return max(read_bandwidth(device, footprint, seconds), 2 * x.nbytes / copying)


def quiet_kernel() -> Callable[[], object]:
    """A product whose weights come from memory, some ten milliseconds long: a busy machine slows it down."""
    x, weight = torch.randn(4, 2048), torch.randn(8192, 2048)
    return lambda: x @ weight.t()
