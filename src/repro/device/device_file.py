"""Device files: numbers with units and sources, checked and converted to SI.

Must not know where the files are. A fact is `{value, unit, source, note, cells}`; a curve has `points`
in place of `value`. `source` is `paper`, `datasheet`, `measured`, `fitted` (with the reference cells) or
`assumed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.device.cost import FULL, Curve, Flash, Machine, Processor

SOURCES = ("paper", "datasheet", "measured", "fitted", "assumed")
UNITS: dict[str, dict[str, float]] = {
    "rate": {"TFLOP/s": 1e12, "GFLOP/s": 1e9, "TOP/s": 1e12, "GOP/s": 1e9},
    "bandwidth": {"GB/s": 1e9, "MB/s": 1e6},
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6},
    "size": {"GB": 1e9, "MB": 1e6, "GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10},
    "power": {"W": 1.0},
    "count": {"": 1.0, "rows": 1.0},
    "factor": {"x": 1.0, "share": 1.0},
}


@dataclass(frozen=True)
class Fact:
    """One number (or a curve's points) in SI units, with its path in the file and its source."""

    path: str
    value: float
    points: tuple[tuple[float, float], ...]
    printed: str
    source: str
    note: str
    cells: tuple[str, ...]


def facts(device: Mapping[str, Any]) -> Iterator[Fact]:
    """All facts of a device file, in file order.

    Raises:
        InputError: a fact is malformed; the message has its path, the wrong value and the valid choices.
    """
    for section in ("processors", "flash", "dram", "power"):
        tables = device.get(section) or {}
        named = {f"{section}.{name}": table for name, table in tables.items()}
        for place, table in named.items() if section == "processors" else ((section, tables),):
            yield from _table(place, table)
    for engine, tables in (device.get("engines") or {}).items():
        for name, table in tables.items():
            yield from _table(f"engines.{engine}.{name}", table)


def _table(place: str, table: Any) -> Iterator[Fact]:
    for path, leaf, key in _leaves(table, place, ""):
        yield _fact(path, leaf, _dimension(path, key))


def _leaves(node: Any, path: str, key: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    if not isinstance(node, Mapping):
        raise InputError(f"{path}: {node!r} is a bare number; write {{value, unit, source}}")
    if "value" in node or "points" in node:
        yield path, node, key
        return
    for name, below in node.items():
        yield from _leaves(below, f"{path}.{name}", key or str(name))


DIMENSIONS = {
    "peak": "rate",
    "bandwidth": "bandwidth",
    "launch": "time",
    "watts": "power",
    "efficiency": "factor",
    "tile": "count",
    "shapes": "count",
    "graph_seconds": "time",
    "window": "size",
    "slower": "factor",
    "slots": "count",
    "rows_exponent": "count",
    "latency": "time",
    "capacity": "size",
    "budget": "size",
    "read_ahead": "factor",
    "idle": "power",
    "sync": "time",
}


def _dimension(path: str, key: str) -> str:
    if key not in DIMENSIONS:
        raise InputError(f"{path}: unknown entry {key!r}; a device file knows {', '.join(DIMENSIONS)}")
    return DIMENSIONS[key]


def _fact(path: str, leaf: Mapping[str, Any], dimension: str) -> Fact:
    unit, source = str(leaf.get("unit", "")), leaf.get("source")
    if source not in SOURCES:
        raise InputError(f"{path}: source {source!r} is none of {', '.join(SOURCES)}")
    if unit not in UNITS[dimension]:
        raise InputError(f"{path}: unit {unit!r} is none of {', '.join(UNITS[dimension])}")
    cells = _cells(path, leaf)
    if source == "fitted" and not cells:
        raise InputError(f"{path}: a fitted number names the reference cells that it was fitted to")
    value, points = _numbers(path, leaf, UNITS[dimension][unit])
    printed = f"{leaf.get('points', leaf.get('value'))} {unit}".strip()
    return Fact(path, value, points, printed, source, str(leaf.get("note", "")), cells)


def _cells(path: str, leaf: Mapping[str, Any]) -> tuple[str, ...]:
    cells = leaf.get("cells") or ()
    if isinstance(cells, str):
        raise InputError(f"{path}: cells {cells!r} is no list; write [{cells}]")
    return tuple(str(cell) for cell in cells)


def _numbers(
    path: str, leaf: Mapping[str, Any], scale: float
) -> tuple[float, tuple[tuple[float, float], ...]]:
    """A fact's value and points in SI; a list of values v gives points (v, v)."""
    value = leaf.get("value", 0.0)
    several = isinstance(value, Sequence) and not isinstance(value, str)
    try:
        points = tuple((float(x), float(y) * scale) for x, y in leaf.get("points") or ())
        values = [float(v) for v in (value if several else [value])]
        first = values[0]
    except (TypeError, ValueError, IndexError):
        wrong = leaf.get("points", value)
        raise InputError(f"{path}: {wrong!r} is no number, list of numbers or list of [x, y]") from None
    if several and not points:
        points = tuple((v, v) for v in values)
    return first * scale, points


def machine(device: Mapping[str, Any], engine: str = "") -> Machine:
    """The emulated machine of a device file, as a named engine uses it.

    Facts under `engines.<engine>.<processor>` override those of the processor.

    Raises:
        InputError: a fact is malformed, a required fact is missing, or the file lacks the engine.
    """
    known = {fact.path: fact for fact in facts(device)}
    name = str(device.get("name", "device"))
    if engine:
        engines = device.get("engines") or {}
        if engine not in engines:
            raise InputError(f"{name}: {unknown('engine', engine, engines)}")
        own = f"engines.{engine}."
        known |= {f"processors.{p.removeprefix(own)}": f for p, f in known.items() if p.startswith(own)}

    def need(path: str) -> Fact:
        if path not in known:
            raise InputError(f"{name}: the device file lacks {path}")
        return known[path]

    def value(path: str, default: float) -> float:
        return known[path].value if path in known else default

    def processor(resource: str) -> Processor:
        at = f"processors.{resource}"
        below = {
            table: {p.rsplit(".", 1)[1]: f.value for p, f in known.items() if p.startswith(f"{at}.{table}.")}
            for table in ("peak", "slower")
        }
        curve, shapes = known.get(f"{at}.efficiency"), known.get(f"{at}.shapes")
        return Processor(
            peak=below["peak"],
            bandwidth=need(f"{at}.bandwidth").value,
            launch=value(f"{at}.launch", 0.0),
            watts=value(f"{at}.watts", 0.0),
            efficiency=_curve(curve) if curve else FULL,
            tile=int(value(f"{at}.tile", 1)),
            shapes=tuple(int(x) for x, _ in shapes.points or ((shapes.value, 0.0),)) if shapes else (),
            graph_seconds=value(f"{at}.graph_seconds", 0.0),
            window=value(f"{at}.window", 0.0),
            slower=below["slower"],
            slots=int(value(f"{at}.slots", 1)),
            rows_exponent=value(f"{at}.rows_exponent", 0.0),
        )

    if not device.get("processors"):
        raise InputError(f"{name}: the device file lacks processors")
    return Machine(
        name=name,
        main=_main(name, device),
        processors={resource: processor(resource) for resource in device["processors"]},
        flash=Flash(
            _curve(need("flash.bandwidth")),
            value("flash.latency", 0.0),
            value("flash.watts", 0.0),
            int(value("flash.slots", 1)),
        ),
        dram_bandwidth=need("dram.bandwidth").value,
        dram_budget=need("dram.budget").value,
        idle_watts=need("power.idle").value,
        keeps_tables=_tables(name, device) == "resident",
        read_ahead=value("dram.read_ahead", 0.0),
        sync=value("dram.sync", 0.0),
    )


def _curve(fact: Fact) -> Curve:
    """The curve of a fact's points, or a constant one of its value."""
    return Curve(fact.points or ((1.0, fact.value),))


def _tables(name: str, device: Mapping[str, Any]) -> str:
    """Where the engine keeps a streamed model's embedding table and output projection."""
    tables = str(device.get("tables", "resident"))
    if tables not in ("resident", "streamed"):
        raise InputError(f"{name}: tables is {tables!r}; choose resident or streamed")
    return tables


def _main(name: str, device: Mapping[str, Any]) -> str:
    processors = list(device["processors"])
    main = str(device.get("main", processors[0]))
    if main not in processors:
        raise InputError(f"{name}: main is {main!r}; the device file has {', '.join(processors)}")
    return main
