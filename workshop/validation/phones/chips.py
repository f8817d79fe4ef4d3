"""A chip's data sheet as a device file.

Owns what a peak is: cores times clock times operations a cycle, of as many of the fastest cores as there are
threads. Must not know engines, which reach a share of it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from repro.core.errors import InputError
from repro.core.registry import unknown
from workshop.validation.phones.rows import reference

THREADS = 4
"""Threads where a row states none."""

LAUNCH = {"cpu": 10, "gpu": 50, "npu": 100}
"""Microseconds to launch an op, for engines that do not say; classes have theirs in their start."""

WATTS = {"cpu": 4.0, "gpu": 4.0, "npu": 2.5}
"""Watts above idle of a busy processor: energies on a chip's device are assumed altogether."""

PRECISIONS = ("fp32", "fp16", "int8")
CLUSTER = re.compile(r"(\d+)x(\w+)@([\d.]+)")


@cache
def cycle() -> dict[str, dict[str, float]]:
    """Operations a cycle by core and precision."""
    return {given["core"]: {p: float(given[p]) for p in PRECISIONS} for given in reference("phone_cores.csv")}


@cache
def sheets() -> dict[str, dict[str, str]]:
    """Data sheets by chip."""
    return {given["soc"]: given for given in reference("phone_socs.csv")}


def sheet(soc: str) -> dict[str, str]:
    """A chip's data sheet.

    Raises:
        InputError: there is none.
    """
    if soc not in sheets():
        raise InputError(unknown("chip", soc, sheets()))
    return sheets()[soc]


def cores(soc: str) -> list[tuple[str, float]]:
    """Core and clock in GHz, the fastest first."""
    found = []
    for cluster in sheet(soc)["cores"].split():
        match = CLUSTER.fullmatch(cluster)
        if not match:
            raise InputError(f"phone_socs.csv: {soc}: cluster {cluster!r} is not written as 4xA76@2.4")
        if match[2] not in cycle():
            raise InputError(f"phone_socs.csv: {soc}: {unknown('core', match[2], cycle())}")
        found += [(match[2], float(match[3]))] * int(match[1])
    return found


def cpu_peak(soc: str, threads: int) -> dict[str, float]:
    """Operations per second of the fastest cores by precision."""
    used = cores(soc)[: threads or THREADS]
    return {p: sum(1e9 * clock * cycle()[core][p] for core, clock in used) for p in PRECISIONS}


def peaks(soc: str, processor: str, threads: int = 0) -> dict[str, float]:
    """Operations per second of a processor by precision.

    A GPU computes quantized weights in fp16; an NPU does fp16 at half its int8 rate, where its vendor prints
    only that.

    Raises:
        InputError: the data sheet has no rate of the processor.
    """
    if processor == "cpu":
        return cpu_peak(soc, threads)
    column = {"gpu": "gpu_tflops", "npu": "npu_tops"}.get(processor, "")
    printed = sheet(soc).get(column, "")
    if not printed:
        raise InputError(f"phone_socs.csv: {soc} has no rate of a {processor}")
    rate = 1e12 * float(printed)
    if processor == "gpu":
        return {"fp32": rate / 2, "fp16": rate, "int8": rate}
    return {"fp16": rate / 2, "int8": rate}


def processor_of(engine: str) -> str:
    """The processor of a class of engines, which its name ends with."""
    return {"cuda": "gpu"}.get(engine.rpartition("_")[2], engine.rpartition("_")[2])


def bandwidth(soc: str) -> float:
    """Bytes per second of the memory bus."""
    return 1e9 * float(sheet(soc)["dram_gb_s"])


def soc_device(soc: str, threads: int = 0) -> dict[str, Any]:
    """A device file of a chip, from its data sheet alone: what an engine reaches of it is the engine's.

    The rest of the machine (flash, memory size, launches, power) is assumed; no speed that a class of engines
    reaches from memory depends on it.
    """
    given = sheet(soc)
    trust = {"source": given["source"], "note": given["note"]}
    assumed = {"source": "assumed", "note": "no phone or board is named"}
    typical = {"source": "assumed", "note": "typical of phones; no figure of the chip was read"}
    bus = {"value": float(given["dram_gb_s"]), "unit": "GB/s", **trust}
    processors: dict[str, Any] = {}
    for processor, units in (("cpu", "GOP/s"), ("gpu", "GFLOP/s"), ("npu", "GOP/s")):
        column = {"gpu": "gpu_tflops", "npu": "npu_tops"}.get(processor, "cores")
        if not given[column]:
            continue
        note = f"{given['cores']}, {threads or THREADS} threads" if processor == "cpu" else given["note"]
        processors[processor] = {
            "peak": {
                p: {
                    "value": float(f"{rate / 1e9:.6g}"),
                    "unit": units,
                    "source": given["source"],
                    "note": note,
                }
                for p, rate in peaks(soc, processor, threads).items()
            },
            "bandwidth": bus,
            "launch": {"value": LAUNCH[processor], "unit": "us", **typical},
            "watts": {"value": WATTS[processor], "unit": "W", **typical},
        }
    return {
        "name": soc,
        "kind": "emulated",
        "soc": soc,
        "papers": [],
        "public": {processor_of(engine): engine for engine in given["engines"].split()},
        "processors": processors,
        "flash": {
            "bandwidth": {"value": 1.0, "unit": "GB/s", **assumed},
            "latency": {"value": 100, "unit": "us", **assumed},
        },
        "dram": {
            "capacity": {"value": 64, "unit": "GB", **assumed},
            "budget": {"value": 64, "unit": "GB", **assumed},
            "bandwidth": bus,
        },
        "power": {"idle": {"value": 1.0, "unit": "W", **assumed}},
    }
