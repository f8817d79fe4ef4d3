"""Measure this machine's read rate, launch time and power, and time arbitrary functions.

Must not know torch: computations are passed in as functions. `repro calibrate` writes a device file from
the measurements.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from statistics import median
from tempfile import NamedTemporaryFile

from repro.device.clock import WallClock
from repro.device.direct_io import REQUEST, DirectFile, page_aligned_memory
from repro.device.emulated import Device
from repro.device.energy import EnergyMeter
from repro.device.op import Op


def seconds_each(work: Callable[[], object], budget: float, least_runs: int = 3) -> float:
    """Seconds per call: the lower quartile over `budget` seconds and at least `least` calls, after a warm-up.

    Other programs on the machine only slow calls down, so a median would include their effect.
    """
    clock = WallClock()
    work()
    times: list[float] = []
    begin = clock.now
    while len(times) < least_runs or clock.now - begin < budget:
        start = clock.now
        work()
        times.append(clock.now - start)
    return sorted(times)[len(times) // 4]


@contextmanager
def scratch_file(folder: Path, size: int) -> Iterator[DirectFile]:
    """A temporary file of `size` random bytes, dropped from the page cache and open for reading."""
    block = os.urandom(min(size, REQUEST))
    with NamedTemporaryFile(dir=folder, prefix="calibrate.") as file:
        for _ in range(size // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        scratch = DirectFile(Path(file.name))
        try:
            yield scratch
        finally:
            scratch.close()


def read_rate(file: DirectFile, size: int, request: int, budget: float) -> float:
    """Bytes per second of one thread that reads a file of `size` bytes in order, in requests of `request`."""
    clock = WallClock()
    buffer = memoryview(page_aligned_memory(max(request, 1 << 20)))
    offsets = cycle(range(0, size - len(buffer) + 1, len(buffer)))
    done_bytes, start = 0, clock.now
    while clock.now - start < budget:
        file.read(buffer, next(offsets), request)
        done_bytes += len(buffer)
    return done_bytes / (clock.now - start)


def launch_seconds(device: Device, on: str, ops: int = 1000, rounds: int = 5) -> float:
    """Seconds from submitting an empty op to its completion: the median over rounds."""

    async def run_ops() -> None:
        for _ in range(ops):
            await device.run(Op(on, "empty", "empty", compute=int))

    def play() -> float:
        start = device.now
        device.play(run_ops())
        return (device.now - start) / ops

    return median([play() for _ in range(rounds)])


def watts(seconds: float, work: Callable[[], object], meter: EnergyMeter) -> float | None:
    """Mean power while `work` is repeated; `None` without a readable counter."""
    start_joules = meter.joules()
    clock = WallClock()
    if start_joules is None:
        return None
    while clock.now < seconds:
        work()
    elapsed, end_joules = clock.now, meter.joules()
    return None if end_joules is None else (end_joules - start_joules) / elapsed
