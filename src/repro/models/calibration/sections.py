"""Fitted costs as a device file and an engine file.

Owns which entries of the files the costs become. Must not know how they were measured. The device gets what
its processor reaches at best, the engine the rest: a start of every layer, a rate by precision and rows,
those of the output projection, and attention's rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from repro.device.device_file import machine
from repro.device.engines.engine_file import with_engine
from repro.models.calibration.fit import FittedCosts, PartCost, Points

Section = dict[str, Any]

ARITHMETIC_OF_DTYPE = {
    "float32": ("fp32",),
    "bfloat16": ("fp16", "bf16"),
    "int4": ("int8",),
    "int8": ("int8",),
}
"""Under which names the rates of a dtype stand. 4-bit weights are billed as int8, as everywhere."""
GIGA = 1e9


def fact(value: float, unit: str, source: str = "measured", note: str = "") -> Section:
    """A number of a file, to four digits."""
    return {"value": float(f"{value:.4g}"), "unit": unit, "source": source} | ({"note": note} if note else {})


def curve(
    points: Iterable[tuple[float, float]], unit: str, source: str = "measured", note: str = ""
) -> Section:
    """A curve of a file, to four digits."""
    rounded_points = [[x, float(f"{y:.4g}")] for x, y in points]
    return {"points": rounded_points, "unit": unit, "source": source} | ({"note": note} if note else {})


def best_rates(costs: FittedCosts, is_packed: bool = True) -> dict[str, float]:
    """Operations per second by arithmetic precision, at the number of rows that is best."""
    parts = [
        (k, p) for table in (costs.layers, costs.heads) for k, p in table.items() if k.packed == is_packed
    ]
    rates: dict[str, float] = {}
    for kernels, part in parts:
        for name in ARITHMETIC_OF_DTYPE[kernels.dtype]:
            rates[name] = max(rates.get(name, 0.0), part.best)
    return rates


def engine_of_costs(
    name: str, costs: FittedCosts, on: str = "cpu", is_packed: bool = True, note: str = ""
) -> Section:
    """The engine file of one kind of kernels: packed for layers in memory, as stored for streamed ones.

    An op of a layer pays its start once for each layer. Looking up embeddings is an op that takes no start.
    The output projection's start has, beside its own, what the runtime does in a pass outside its ops.
    """
    rates = best_rates(costs, is_packed)
    start: Section = {"embed": {}, "head": {}}
    efficiency: Section = {"head": {}}
    for kernels, part in costs.layers.items():
        if kernels.packed != is_packed:
            continue
        head = costs.heads[kernels]
        for arithmetic in ARITHMETIC_OF_DTYPE[kernels.dtype]:
            start[arithmetic] = starts(part.start)
            start["embed"][arithmetic] = fact(0.0, "us")
            start["head"][arithmetic] = starts(_sum(head.start, costs.rest))
            efficiency[arithmetic] = shares(part, rates[arithmetic])
            efficiency["head"][arithmetic] = shares(head, rates[arithmetic])
    processor: Section = {
        "rate": {arithmetic: fact(rate / GIGA, "GFLOP/s") for arithmetic, rate in rates.items()},
        "efficiency": efficiency,
        "start": start,
    }
    if costs.attention:
        processor["attention"] = curve([(row_count, v / GIGA) for row_count, v in costs.attention], "GFLOP/s")
    return {"name": name, "papers": []} | ({"note": note} if note else {}) | {"processors": {on: processor}}


def _sum(points: Points, other_points: Points) -> Points:
    other_values = dict(other_points)
    return tuple((row_count, value + other_values.get(row_count, 0.0)) for row_count, value in points)


def starts(points: Points, source: str = "measured", note: str = "") -> Section:
    """Seconds before the work, by rows, as a curve of an engine file."""
    return curve([(row_count, seconds * 1e6) for row_count, seconds in points], "us", source, note)


def shares(part: PartCost, best_rate: float, source: str = "measured", note: str = "") -> Section:
    """A part's rates as shares of the best one, by rows, as a curve of an engine file."""
    return curve([(row_count, rate / best_rate) for row_count, rate in part.rate], "share", source, note)


def render(facts: Mapping[str, Any], comment_lines: Sequence[str]) -> str:
    """The text of a file, one fact a line, below comment lines; composing it was tried before."""
    return "\n".join([*comment_lines, *_lines(facts)]) + "\n"


def _lines(node: Mapping[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, child in node.items():
        if isinstance(child, dict) and "source" not in child:
            lines += [f"{indent}{key}:", *_lines(child, indent + "  ")]
        else:
            entry = yaml.safe_dump({key: child}, default_flow_style=True, sort_keys=False, width=1 << 16)
            lines.append(indent + entry.strip()[1:-1])
    return lines


def require_composing(device: Mapping[str, Any], engines: Iterable[Mapping[str, Any]]) -> None:
    """InputError if a device and an engine do not make a machine."""
    machine(device)
    for engine in engines:
        machine(with_engine(device, engine))
