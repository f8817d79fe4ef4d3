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
from repro.device.device_file import cores_peak
from workshop.validation.phones.rows import reference

THREADS = 4
"""Threads where a row states none."""

LAUNCH = {"cpu": 10, "gpu": 50, "npu": 100}
"""Microseconds to launch an op, for engines that do not say; classes have theirs in their start."""

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


@cache
def power() -> dict[tuple[str, str], dict[str, str]]:
    """Measured power by chip and processor."""
    return {(given["soc"], given["processor"]): given for given in reference("phone_power.csv")}


def core_rates(soc: str, precision: str) -> list[float]:
    """Operations per second of each CPU core, the fastest first."""
    return [1e9 * clock * cycle()[core][precision] for core, clock in cores(soc)]


def peaks(soc: str, processor: str, threads: int = 0) -> dict[str, tuple[float, float]]:
    """Operations per second of a processor by precision: over many rows, and over one.

    A GPU computes quantized weights in fp16; an NPU does fp16 at half its int8 rate, where its vendor prints
    only that.

    Raises:
        InputError: the data sheet has no rate of the processor.
    """
    if processor == "cpu":
        used = min(threads or THREADS, len(cores(soc)))
        return {precision: cores_peak(core_rates(soc, precision), used) for precision in PRECISIONS}
    column = {"gpu": "gpu_tflops", "npu": "npu_tops"}.get(processor, "")
    printed = sheet(soc).get(column, "")
    if not printed:
        raise InputError(f"phone_socs.csv: {soc} has no rate of a {processor}")
    rate = 1e12 * float(printed)
    rates = (
        {"fp32": rate / 2, "fp16": rate, "int8": rate}
        if processor == "gpu"
        else {"fp16": rate / 2, "int8": rate}
    )
    return {precision: (rate, rate) for precision, rate in rates.items()}


def processor_of(engine: str) -> str:
    """The processor of a class of engines, which its name ends with."""
    return {"cuda": "gpu"}.get(engine.rpartition("_")[2], engine.rpartition("_")[2])


def bandwidth(soc: str, processor: str = "") -> float:
    """Bytes per second of the memory bus, or of what a processor was measured to read at most."""
    given = sheet(soc)
    return 1e9 * float((processor == "npu" and given["npu_gb_s"]) or given["dram_gb_s"])


def soc_device(soc: str, threads: int = 0) -> dict[str, Any]:
    """A device file of a chip, from its data sheet alone: what an engine reaches of it is the engine's.

    The rest of the machine (flash, memory size, launches) is assumed; no speed that a class of engines
    reaches from memory depends on it. Power is what was measured, or absent.
    """
    given, used_threads = sheet(soc), min(threads or THREADS, len(cores(soc)))
    trust = {"source": given["source"], "note": given["note"]}
    assumed = {"source": "assumed", "note": "a chip alone says nothing of it"}
    typical = {"source": "assumed", "note": "typical of phones; no figure of the chip was read"}
    processors: dict[str, Any] = {}
    for processor, unit in (("cpu", "GOP/s"), ("gpu", "GFLOP/s"), ("npu", "GOP/s")):
        column = {"gpu": "gpu_tflops", "npu": "npu_tops"}.get(processor, "cores")
        if not given[column]:
            continue
        of_cpu = {**trust, "note": f"{given['cores']}, {used_threads} threads"}
        processors[processor] = {
            "peak": {
                precision: {"value": _giga(rate), "unit": unit, **(of_cpu if processor == "cpu" else trust)}
                for precision, (rate, _) in peaks(soc, processor, threads).items()
            },
            "bandwidth": {"value": bandwidth(soc, processor) / 1e9, "unit": "GB/s", **trust},
            "launch": {"value": LAUNCH[processor], "unit": "us", **typical},
        }
        if measured := power().get((soc, processor)):
            watts = {"unit": "W", "source": "paper", "note": measured["note"]}
            processors[processor]["watts"] = {"value": float(measured["busy_w"]), **watts}
    processors["cpu"] |= {
        "threads": {
            "value": used_threads,
            "unit": "",
            "source": "assumed",
            "note": "llama.cpp's default",
        },
        "cores": {
            precision: {
                "value": [_giga(rate) for rate in core_rates(soc, precision)],
                "unit": "GOP/s",
                "source": given["source"],
                "note": given["cores"],
            }
            for precision in PRECISIONS
        },
    }
    device: dict[str, Any] = {
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
            "bandwidth": {"value": float(given["dram_gb_s"]), "unit": "GB/s", **trust},
        },
    }
    if idle := next((measured for (chip, _), measured in power().items() if chip == soc), None):
        watts = {"unit": "W", "source": "paper", "note": idle["note"]}
        device["power"] = {"idle": {"value": float(idle["idle_w"]), **watts}}
    return device


def _giga(rate: float) -> float:
    return float(f"{rate / 1e9:.6g}")
