"""Kinds of numbers in device and engine files: dimension, units and range of each entry.

Must not know where an entry stands in a file, nor what a machine makes of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, get_args

from annotated_types import Interval

from repro.core.bounds import Share

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
        type: type of its value in SI units; beyond its bounds it is a slip of units.
        several: whether it may be a list.
    """

    dimension: str
    type: Any
    several: bool = False

    @property
    def whole(self) -> bool:
        """Whether it is a whole number."""
        return get_args(self.type)[0] is int

    @property
    def most(self) -> float:
        """Its largest value in SI units."""
        return float(get_args(self.type)[1].le)

    def in_units(self, scale: float) -> Any:
        """The type of its value in units of `scale` SI units."""
        base, bounds = get_args(self.type)
        ends = {side: end / scale for side, end in asdict(bounds).items() if end is not None}
        return Annotated[base, Interval(**ends)]


RATE = Kind("rate", Annotated[float, Interval(gt=0, le=1e18)])
SPEED = Kind("bandwidth", Annotated[float, Interval(gt=0, le=1e15)])
TIME = Kind("time", Annotated[float, Interval(ge=0, le=1e3)])
POWER = Kind("power", Annotated[float, Interval(ge=0, le=1e5)])
SIZE = Kind("size", Annotated[float, Interval(gt=0, le=1e15)])
EXPONENT = Kind("count", Annotated[float, Interval(ge=0, le=100)])
PART = Kind("factor", Annotated[float, Interval(gt=0, le=1)])
FACTOR = Kind("factor", Annotated[float, Interval(gt=0, le=1e6)])
ROWS = Kind("count", Annotated[int, Interval(ge=1, le=1_000_000)])
KINDS = {
    "peak": RATE,
    "rate": PART,
    "bandwidth": SPEED,
    "bandwidth_share": PART,
    "launch": TIME,
    "start": TIME,
    "start_exponent": EXPONENT,
    "start_rows": ROWS,
    "added": Kind("count", Annotated[int, Interval(ge=0, le=1)]),
    "watts": POWER,
    "efficiency": FACTOR,
    "attention": RATE,
    "tile": ROWS,
    "shapes": replace(ROWS, several=True),
    "graph_seconds": TIME,
    "window": Kind("size", Annotated[float, Interval(ge=0, le=1e15)]),
    "sessions.count": ROWS,
    "sessions.size": SIZE,
    "slower": FACTOR,
    "slots": ROWS,
    "threads": ROWS,
    "cores": replace(RATE, several=True),
    "formats": FACTOR,
    "rows_exponent": EXPONENT,
    "rows_quadratic": EXPONENT,
    "latency": TIME,
    "capacity": SIZE,
    "budget": SIZE,
    "read_ahead": Kind("factor", Share),
    "idle": POWER,
    "constant": POWER,
    "sync": TIME,
    "token": TIME,
}
"""What each entry may be, by its name."""
