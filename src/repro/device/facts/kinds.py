"""Kinds of numbers in device and engine files: dimension, units and range of each entry.

Must not know where an entry stands in a file, nor what a machine makes of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from repro.core.ranges import SHARE, Range

UNITS: dict[str, dict[str, float]] = {
    "rate": {"TFLOP/s": 1e12, "GFLOP/s": 1e9, "TOP/s": 1e12, "GOP/s": 1e9},
    "bandwidth": {"GB/s": 1e9, "MB/s": 1e6},
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "size": {"GB": 1e9, "MB": 1e6, "GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10},
    "power": {"W": 1.0},
    "count": {"": 1.0, "rows": 1.0},
    "factor": {"x": 1.0, "share": 1.0},
}
"""Units of each dimension, in SI units."""


@dataclass(frozen=True)
class Kind:
    """What a number may be.

    Attributes:
        dimension: key of `UNITS`.
        range: range of its value in SI units, beyond which it is a slip of units.
        several: whether it may be a list.
    """

    dimension: str
    range: Range
    several: bool = False


RATE, SPEED = Kind("rate", Range(above=True, most=1e18)), Kind("bandwidth", Range(above=True, most=1e15))
TIME, POWER = Kind("time", Range(most=1e3)), Kind("power", Range(most=1e5))
SIZE, EXPONENT = Kind("size", Range(above=True, most=1e15)), Kind("count", Range(most=100))
PART, FACTOR = Kind("factor", Range(above=True, most=1)), Kind("factor", Range(above=True, most=1e6))
ROWS = Kind("count", Range(1, most=1e6, whole=True))
KINDS = {
    "peak": RATE,
    "rate": PART,
    "bandwidth": SPEED,
    "bandwidth_share": PART,
    "launch": TIME,
    "start": TIME,
    "start_exponent": EXPONENT,
    "start_rows": ROWS,
    "added": Kind("count", Range(most=1, whole=True)),
    "watts": POWER,
    "efficiency": FACTOR,
    "attention": RATE,
    "tile": ROWS,
    "shapes": replace(ROWS, several=True),
    "graph_seconds": TIME,
    "window": Kind("size", Range(most=1e15)),
    "sessions.count": ROWS,
    "sessions.size": SIZE,
    "slower": FACTOR,
    "slots": ROWS,
    "threads": ROWS,
    "rows_exponent": EXPONENT,
    "rows_quadratic": EXPONENT,
    "latency": TIME,
    "capacity": SIZE,
    "budget": SIZE,
    "read_ahead": Kind("factor", SHARE),
    "idle": POWER,
    "constant": POWER,
    "sync": TIME,
    "token": TIME,
}
"""What each entry may be, by its name."""
