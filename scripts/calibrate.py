"""Measure this machine and write its device file, so that it can be emulated.

python scripts/calibrate.py                                   conf/device/calibrated.yaml, about a minute
python scripts/calibrate.py --name "Pixel 8" --out phone.yaml
python scripts/calibrate.py --quick                           a few seconds, inaccurate: caches are not
emptied python scripts/calibrate.py --device cuda                     the GPU in place of the CPU
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import yaml

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.device import measure
from repro.device.device_file import machine
from repro.device.local import LocalDevice, LocalMachine, physical_memory
from repro.device.op import CPU, FLASH, GPU
from repro.models.runtime.cuda import cuda_stream
from repro.models.transformer import gemm_rates
from repro.models.transformer.gemm_rates import Effort, Measured, Rates
from repro.records.build_cache import cache_root, require_space
from repro.records.record import write_atomically

MARK = "# Written by scripts/calibrate.py"
REQUESTS = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
GIGA = 1e9

FULL = Effort(0.3, (1, 2, 4, 8, 16, 32, 64, 256), 8192, 2048, 256 << 20)
QUICK = Effort(0.02, (1, 8, 64), 1024, 1024, 4 << 20)
FILE = {FULL: 1 << 30, QUICK: 16 << 20}
"""Size in bytes of the file read to measure the disk."""
DISTURBING = 0.25
"""Load of other processes, as a share of the cores, above which a warning is due."""

Section = dict[str, Any]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fact(value: float, unit: str, source: str = "measured", note: str = "") -> Section:
    """A number of a device file, to four digits."""
    return {"value": float(f"{value:.4g}"), "unit": unit, "source": source} | ({"note": note} if note else {})


def curve(points: Sequence[tuple[int, float]], unit: str, note: str) -> Section:
    """A curve of a device file, to three digits."""
    rounded = [[x, float(f"{y:.3g}")] for x, y in points]
    return {"points": rounded, "unit": unit, "source": "measured", "note": note}


def processor(rates: Rates, products: Sequence[Measured], launch: float, effort: Effort) -> Section:
    shown = f"{effort.outputs} x {effort.inputs} weights"
    lacking = fact(
        rates.peaks["fp32"][0] / GIGA, "GFLOP/s", "assumed", "as fp32: this torch has no such kernel"
    )
    error = f"one curve for all kernels; the worst time is off by a factor of {rates.worst(products):.2f}"
    return {
        "peak": {"fp32": lacking, "fp16": lacking, "int8": lacking}
        | {
            arithmetic: fact(rate / GIGA, "GFLOP/s", note=f"{kernel}, {shown}")
            for arithmetic, (rate, kernel) in rates.peaks.items()
        },
        "efficiency": curve(rates.efficiency, "share", error),
        "bandwidth": fact(rates.bandwidth / GIGA, "GB/s", note="weights, in products of one row"),
        "launch": fact(launch * 1e6, "us", note="an op that does nothing, through LocalDevice"),
    }


def launch_seconds(device: torch.device) -> float:
    """Seconds of an empty op on this machine's local device."""
    on, stream = (GPU, cuda_stream()) if device.type == "cuda" else (CPU, None)
    local = LocalDevice(LocalMachine("here", frozenset({CPU, on, FLASH}), budget=0.0), stream)
    try:
        return measure.launch_seconds(local, on)
    finally:
        local.close()


def flash(folder: Path, size: int, seconds: float) -> Section:
    """The storage section: one thread reading sequentially, by request size."""
    folder.mkdir(parents=True, exist_ok=True)
    require_space(folder, 2 * size, "the file that is read to measure the disk")
    say(f"flash: writing and reading {size >> 20} MiB in {folder}")
    rates = []
    with measure.scratch_file(folder, size) as source:
        for request in REQUESTS:
            rate = measure.read_rate(source, size, request, 2 * seconds)
            say(f"  requests of {request >> 10:4} KiB {rate / GIGA:7.3f} GB/s")
            rates.append(rate / GIGA)
        way = source.way
    # Disk speed drifts during measurement; a large request is never slower than its small parts.
    points = list(zip(REQUESTS, accumulate(rates, max), strict=True))
    latency = points[0][0] / (points[0][1] * GIGA)
    return {
        "bandwidth": curve(points, "GB/s", f"one thread, in order; pages {way}"),
        "latency": fact(latency * 1e6, "us", note="of a request of 4 KiB"),
        "watts": fact(2.0, "W", "assumed", "an SSD or a phone's flash that reads"),
    }


def memory(device: torch.device, alone: float, effort: Effort) -> Section:
    """The DRAM section; `alone` is the processor's measured read bandwidth in bytes per second."""
    read = gemm_rates.read_bandwidth(device, effort.footprint, effort.seconds)
    copied = gemm_rates.copy_bandwidth(device, effort.footprint, effort.seconds)
    say(f"memory: {read / GIGA:.1f} GB/s read, {copied / GIGA:.1f} GB/s copied")
    whole = physical_memory()
    if device.type == "cuda":
        whole = float(torch.cuda.get_device_properties(device).total_memory)
    return {
        "capacity": fact(whole / GIGA, "GB"),
        "budget": fact(0.8 * whole / GIGA, "GB", "assumed", "four fifths of the capacity"),
        "bandwidth": fact(
            max(alone, read, copied) / GIGA, "GB/s", note="the fastest of reading, copying, and products"
        ),
    }


def power(device: torch.device, effort: Effort) -> tuple[Section, Section]:
    """Idle power, and compute power above idle; only some machines' CPU packages can be measured."""
    a = torch.rand(1024, 1024)
    pause = 5 * effort.seconds
    idle = measure.watts(pause, lambda: time.sleep(pause))
    busy = measure.watts(pause, lambda: a @ a)
    if idle is None or busy is None or device.type == "cuda":
        say("power: no counter to read; idle and watts are assumed")
        note, above = (
            "no power counter was read",
            200.0 if device.type == "cuda" else 3.0 * torch.get_num_threads(),
        )
        return fact(5.0, "W", "assumed", note), fact(above, "W", "assumed", note)
    say(f"power: {idle:.1f} W idle, {busy:.1f} W computing")
    note = "RAPL, the processor packages alone"
    return fact(idle, "W", note=note), fact(max(0.0, busy - idle), "W", note=f"{note}, above idle")


def calibrate(name: str, device: torch.device, effort: Effort, scratch: Path) -> Section:
    """The device file of this machine."""
    storage = flash(scratch, FILE[effort], effort.seconds)
    say(f"products of {effort.outputs} x {effort.inputs} weights")
    products = list(gemm_rates.measure_products(device, effort, say))
    rates = Rates.of(products)
    section = processor(rates, products, launch_seconds(device), effort)
    say(f"launch: {section['launch']['value']} us an op")
    dram = memory(device, rates.bandwidth, effort)
    idle, section["watts"] = power(device, effort)
    on = GPU if device.type == "cuda" else CPU
    return {
        "name": name,
        "kind": "emulated",
        "processors": {on: section},
        "flash": storage,
        "dram": dram,
        "power": {"idle": idle},
    }


def render(facts: Section, quick: bool, busy: float | None) -> str:
    """The text of a device file, one fact per line."""
    how = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    head = [f"{MARK} on {datetime.now(UTC):%Y-%m-%d} with {how}{', --quick' if quick else ''}."]
    if busy is not None:
        head.append(
            f"# Others kept {busy:.1f} cores busy when it began; rates are too low by what they took."
        )
    if quick:
        head.append(
            "# Quick figures: weights stay in caches, so that rates are too high. Run it without --quick."
        )
    return "\n".join([*head, *_lines(facts)]) + "\n"


def _lines(node: Section, indent: str = "") -> list[str]:
    lines = []
    for key, below in node.items():
        if isinstance(below, dict) and "source" not in below:
            lines += [f"{indent}{key}:", *_lines(below, indent + "  ")]
        else:
            braced = yaml.safe_dump({key: below}, default_flow_style=True, sort_keys=False, width=1 << 16)
            lines.append(indent + braced.strip()[1:-1])
    return lines


def foreign_load() -> float | None:
    """Cores busy over the last minute if that disturbs the measurement; `None` if not or unknown."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return load if load > DISTURBING * (os.cpu_count() or 1) else None


def device_named(kind: str) -> torch.device:
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda needs a GPU, and torch sees none; choose --device cpu")
    return torch.device(kind)


def free_place(out: Path) -> Path:
    """`out`, if it does not exist or is an earlier calibration."""
    if out.exists() and not out.read_text(encoding="utf-8").startswith(MARK):
        raise InputError(f"{out} was not written by this script; choose another --out or --name")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.parent}")
    return out


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--name", default="Calibrated", help="of the machine, as tables show it")
    parser.add_argument("--out", type=Path, help="file to write; by default conf/device/<name>.yaml")
    parser.add_argument("--quick", action="store_true", help="seconds, for a look; rates are too high")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="processor to measure")
    parser.add_argument(
        "--scratch", type=Path, default=cache_root() / "calibrate", help="folder on the disk to measure"
    )
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    chosen = arguments(given)
    slug = re.sub(r"[^a-z0-9]+", "_", chosen.name.lower()).strip("_") or "calibrated"
    effort, busy = QUICK if chosen.quick else FULL, foreign_load()
    if busy is not None:
        say(f"others keep {busy:.1f} cores busy: stop them for figures that hold")
    try:
        out = free_place(chosen.out or conf_dir() / "device" / f"{slug}.yaml")
        found = calibrate(chosen.name, device_named(chosen.device), effort, chosen.scratch)
        text = render(found, chosen.quick, busy)
        machine(yaml.safe_load(text))
        write_atomically(out, text)
    except InputError as wrong:
        sys.exit(f"calibrate: {wrong}")
    print(f"{out}: use it with device={out.stem}")


if __name__ == "__main__":
    main()
