"""Device files: numbers with units and sources, checked and converted to SI.

Must not know where the files are, nor how an engine's numbers come into one (`engines`). A fact is
`{value, unit, source, note, cells}`; a curve has `points` in place of `value`. `source` is `paper`,
`datasheet`, `measured`, `fitted` (with the reference cells) or `assumed`. A number outside the range of its
kind is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isfinite
from typing import Any

from repro.core.errors import InputError
from repro.core.registry import require_choice, unknown
from repro.core.remembered import remember
from repro.core.typed import require, words
from repro.device.cost import FULL_EFFICIENCY, Curve, Flash, Machine, Processor
from repro.device.facts.holds import HOLDS_KEY, require_holds
from repro.device.facts.kinds import KINDS, UNITS, Kind
from repro.device.op import PROCESSORS, UNSUPPORTED
from repro.device.products import PRODUCT

FITTED_TO = "fitted_to"
"""What `cells` says, for a number whose fit was named after cells had been computed: keys leave it out."""

EXPLANATION_KEYS = ("source", "note", "cells", FITTED_TO)
FACT_KEYS = ("value", "points", "unit", *EXPLANATION_KEYS)
"""What a fact may say."""

FACT_SOURCES = ("paper", "datasheet", "measured", "fitted", "assumed")
FACT_SECTIONS = ("processors", "flash", "dram", "power")
"""Parts of a file that hold facts; `processors` has one table for each processor."""

WORD_SETTINGS = {
    "tables": ("resident", "streamed"),
    "reads": ("overlapped", "serial"),
    "traffic": ("overlapped", "added"),
    "draft_prompt": ("in_turn", "earliest"),
}
"""Settings of an engine that are words, with their choices; the first is the default."""


DEVICE_KEYS = (
    *("name", PRODUCT, "kind", "main", "verifies", "soc", "chip", "papers", "note", "pace"),
    *("engine", "engines", "public", "format"),
    *(*FACT_SECTIONS, *WORD_SETTINGS),
)
"""What a device file may say."""

TEXT_KEYS = (
    *("name", PRODUCT, "kind", "main", "verifies", "soc", "chip", "format", "note"),
    *WORD_SETTINGS,
)


QUANTIZED = "int8"
"""The arithmetic of quantized weights, whose efficiency a format changes."""


@dataclass(frozen=True)
class Fact:
    """One number (or a curve's points) in SI units, with its path in the file, its kind and its source."""

    path: str
    kind: Kind
    value: float
    points: tuple[tuple[float, float], ...]
    printed: str
    source: str
    note: str
    cells: tuple[str, ...]


def require_entries(device: Mapping[str, Any]) -> None:
    """InputError for an entry that no device file has, or one of the wrong type; facts are checked apart."""
    name = str(device.get("name", "device"))
    for key, value in device.items():
        if key not in DEVICE_KEYS:
            raise InputError(f"{name}: {unknown('entry', key, DEVICE_KEYS)}")
        if key in TEXT_KEYS and not isinstance(value, str):
            raise InputError(f"{name}: {key} is {value!r}; it must be a text")
        if key in FACT_SECTIONS:
            _mapping(f"{name}: {key}", value)
    papers = device.get("papers", [])
    if not isinstance(papers, list) or not all(isinstance(paper, str) for paper in papers):
        raise InputError(f"{name}: papers is {papers!r}; it must be a list of keys of the bibliography")


def facts(device: Mapping[str, Any]) -> Iterator[Fact]:
    """All facts of a device file, in file order.

    Raises:
        InputError: a fact is malformed or out of range; the message has its path, the wrong value and the
            valid choices.
    """
    for section in FACT_SECTIONS:
        tables = _mapping(section, device.get(section))
        tables_by_path = {f"{section}.{name}": table for name, table in tables.items()}
        for path, table in tables_by_path.items() if section == "processors" else ((section, tables),):
            yield from _table(path, table)
    for engine, tables in _mapping("engines", device.get("engines")).items():
        for name, table in _mapping(f"engines.{engine}", tables).items():
            yield from _table(f"engines.{engine}.{name}", table)


def _mapping(path: str, tables: Any) -> Mapping[str, Any]:
    """A part of a file that is a mapping, or absent."""
    if tables is not None and not isinstance(tables, Mapping):
        raise InputError(f"{path}: {tables!r} must be a mapping")
    return tables or {}


def _table(table_path: str, table: Any) -> Iterator[Fact]:
    for path, leaf, key in _leaves(table, table_path, ""):
        yield read_fact(path, leaf, _kind(path, key))


def _leaves(node: Any, path: str, key: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    if not isinstance(node, Mapping):
        raise InputError(f"{path}: {node!r} is a bare number; write {{value, unit, source}}")
    if is_fact(node):
        yield path, node, key
        return
    for name, inner in node.items():
        if name == HOLDS_KEY:
            require_holds(f"{path}.{name}", inner)
            continue
        if name == UNSUPPORTED:
            require_choice(f"{path}.{name}", inner, PROCESSORS)
            continue
        yield from _leaves(inner, f"{path}.{name}", f"{key}.{name}" if key else str(name))


def is_fact(node: Any) -> bool:
    """Whether a part of a file is a fact, and no table of them."""
    return isinstance(node, Mapping) and ("value" in node or "points" in node)


def _kind(path: str, key: str) -> Kind:
    kind = KINDS.get(key) or KINDS.get(key.partition(".")[0])
    if kind is None:
        raise InputError(f"{path}: unknown entry {key!r}; a device file knows {', '.join(KINDS)}")
    return kind


def read_fact(path: str, leaf: Mapping[str, Any], kind: Kind) -> Fact:
    """One fact.

    Raises:
        InputError: as `facts`.
    """
    for key in leaf:
        if key not in FACT_KEYS:
            raise InputError(f"{path}: {unknown('entry', key, FACT_KEYS)}")
    unit, source = str(leaf.get("unit", "")), leaf.get("source")
    units = UNITS[kind.dimension]
    if not isinstance(leaf.get("note", ""), str):
        raise InputError(f"{path}: note {leaf['note']!r} is no text")
    if source not in FACT_SOURCES:
        raise InputError(f"{path}: source {source!r} is none of {', '.join(FACT_SOURCES)}")
    if unit not in units:
        raise InputError(f"{path}: unit {unit!r} is none of {', '.join(units)}")
    if "value" in leaf and "points" in leaf:
        raise InputError(f"{path} gives both value and points; give one")
    cells = _cells(path, leaf)
    if source == "fitted" and not cells:
        raise InputError(f"{path}: a fitted number names the reference cells that it was fitted to")
    if isinstance(leaf.get("value"), (list, tuple)) and not kind.several:
        raise InputError(f"{path}: value {leaf['value']!r} is a list, and it is one number")
    value, points = _numbers(path, leaf, units[unit])
    printed = f"{leaf.get('points', leaf.get('value'))} {unit}".strip()
    _require_range(path, printed, kind, value / units[unit], points, units[unit])
    if not points and "points" in leaf:
        raise InputError(f"{path}: {printed} has no point")
    return Fact(path, kind, value, points, printed, source, str(leaf.get("note", "")), cells)


def _require_range(
    path: str,
    printed: str,
    kind: Kind,
    value: float,
    points: tuple[tuple[float, float], ...],
    scale: float,
) -> None:
    """InputError for a value or a point out of range, and for points whose first numbers do not rise."""
    bounds = kind.in_units(scale)
    for number in [y / scale for _, y in points] or [value]:
        try:
            require(bounds, int(number) if kind.whole and number.is_integer() else number, path)
        except InputError as wrong:
            finite = "" if isfinite(number) else ", and finite"
            raise InputError(f"{path}: {printed} must be {words(bounds)}{finite}") from wrong
    xs = [x for x, _ in points]
    if not all(isfinite(x) and x > 0 for x in xs):
        raise InputError(f"{path}: {printed}: a point's first number must be above 0 and finite")
    is_unordered = kind.several and not kind.whole  # a list of rates, one of each core
    if not is_unordered and any(x >= next_x for x, next_x in pairwise(xs)):
        raise InputError(f"{path}: {printed}: the points' first numbers must rise")


def _cells(path: str, leaf: Mapping[str, Any]) -> tuple[str, ...]:
    cells = leaf.get("cells") or leaf.get(FITTED_TO) or ()
    if not isinstance(cells, (list, tuple)):
        raise InputError(f"{path}: cells {cells!r} is no list; write [{cells}]")
    if wrong := [cell for cell in cells if not isinstance(cell, str) or not cell]:
        raise InputError(f"{path}: cells has {wrong[0]!r}; it lists ids of reference cells")
    return tuple(cells)


def _numbers(
    path: str, leaf: Mapping[str, Any], scale: float
) -> tuple[float, tuple[tuple[float, float], ...]]:
    """A fact's value and points in SI; a list of values v gives points (v, v in SI)."""
    value = leaf.get("value", 0.0)
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    try:
        points = tuple((_number(x), _number(y) * scale) for x, y in leaf.get("points") or ())
        values = [_number(v) for v in (value if is_list else [value])]
        first_value = values[0]
    except (TypeError, ValueError, IndexError):
        wrong = leaf.get("points", value)
        raise InputError(f"{path}: {wrong!r} is no number, list of numbers or list of [x, y]") from None
    if is_list and not points:
        points = tuple((v, v * scale) for v in values)
    return first_value * scale, points


def _number(value: Any) -> float:
    """A number; ValueError for a truth value, which is a number to Python."""
    if isinstance(value, bool):
        raise ValueError
    return float(value)


@remember(16)
def machine(device: Mapping[str, Any], program: str = "") -> Machine:
    """The emulated machine of a device file, as a named program uses it.

    Facts under `engines.<program>.<processor>` override those of the processor.

    Raises:
        InputError: a fact is malformed or out of range, a required fact is missing, or the file lacks the
            program.
    """
    name = str(device.get(PRODUCT, device.get("name", "device")))
    require_entries(device)
    try:
        by_path = {fact.path: fact for fact in facts(device)}
    except InputError as wrong:
        raise InputError(f"{name}: {wrong}") from None
    if program:
        programs = device.get("engines") or {}
        if program not in programs:
            raise InputError(f"{name}: {unknown('engine', program, programs)}")
        base = f"engines.{program}."
        by_path |= {f"processors.{p.removeprefix(base)}": f for p, f in by_path.items() if p.startswith(base)}

    def need(path: str) -> Fact:
        if path not in by_path:
            raise InputError(f"{name}: the device file lacks {path}")
        return by_path[path]

    def value(path: str, default: float = 0.0) -> float:
        return by_path[path].value if path in by_path else default

    if not device.get("processors"):
        raise InputError(f"{name}: the device file lacks processors")
    constant_power = by_path.get("power.constant")
    adds_traffic = chosen_word(name, device, "traffic") == "added"
    processors = {
        resource: _processor(
            f"processors.{resource}",
            by_path,
            need(f"processors.{resource}.bandwidth"),
            (entries or {}).get("formats") or {},
        )
        for resource, entries in device["processors"].items()
    }
    for resource, processor in processors.items():
        watts = 0.0 if constant_power else processor.watts
        processors[resource] = replace(processor, adds=adds_traffic or processor.adds, watts=watts)
    return Machine(
        name=name,
        main=_main_processor(name, device),
        verifies=str(device.get("verifies", "")),
        processors=processors,
        flash=Flash(
            _curve(need("flash.bandwidth")),
            value("flash.latency"),
            0.0 if constant_power else value("flash.watts"),
            int(value("flash.slots", 1)),
        ),
        dram_bandwidth=need("dram.bandwidth").value,
        dram_budget=need("dram.budget").value,
        idle_watts=constant_power.value if constant_power else _idle_watts(by_path),
        keeps_tables=chosen_word(name, device, "tables") == "resident",
        read_ahead=value("dram.read_ahead"),
        sync=value("dram.sync"),
        serial_reads=chosen_word(name, device, "reads") == "serial",
        early_drafts=chosen_word(name, device, "draft_prompt") == "earliest",
    )


def _idle_watts(facts_by_path: Mapping[str, Fact]) -> float | None:
    """Idle power; `None` where nobody measured it, so that energies are absent."""
    return facts_by_path["power.idle"].value if "power.idle" in facts_by_path else None


def _processor(
    path: str, facts_by_path: Mapping[str, Fact], bandwidth: Fact, formats: Mapping[str, Any]
) -> Processor:
    """The processor at a path of the file; a share of a rate or bandwidth is one of the device's.

    Args:
        path: where it stands.
        facts_by_path: all facts of the file.
        bandwidth: the processor's bandwidth, of which its engine may reach a share.
        formats: storage formats of which its engine says something.
    """

    def value(entry: str, default: float = 0.0) -> float:
        return facts_by_path[f"{path}.{entry}"].value if f"{path}.{entry}" in facts_by_path else default

    def table(entry: str) -> dict[str, Fact]:
        prefix = f"{path}.{entry}."
        return {p.removeprefix(prefix): f for p, f in facts_by_path.items() if p.startswith(prefix)}

    peak = {precision: fact.value for precision, fact in table("peak").items()}
    curve, shapes = facts_by_path.get(f"{path}.efficiency"), facts_by_path.get(f"{path}.shapes")
    efficiency = _curve(curve) if curve else FULL_EFFICIENCY
    own_efficiency = {of: _curve(fact) for of, fact in table("efficiency").items()}
    for precision, fact in table("cores").items():
        if precision in peak:
            peak[precision], one = cores_peak([rate for _, rate in fact.points], int(value("threads")))
            own_efficiency.setdefault(precision, efficiency.scaled(one / peak[precision], 1.0))
    quantized = own_efficiency.get(QUANTIZED, efficiency)
    for precision, share in table("rate").items():
        if precision not in peak:
            raise InputError(
                f"{share.path}: the engine has {share.printed} of the processor's peak in {precision}, which "
                f"the device file lacks (it has {', '.join(peak)}); add {path}.peak.{precision} to it, or "
                "choose another engine, such as own"
            )
        peak[precision] *= share.value
    attention = facts_by_path.get(f"{path}.attention")
    return Processor(
        peak=peak,
        bandwidth=bandwidth.value * value("bandwidth_share", 1.0),
        launch=value("launch"),
        watts=value("watts") if f"{path}.watts" in facts_by_path else None,
        efficiency=efficiency,
        own_efficiency=own_efficiency,
        format_efficiency={
            name: quantized.scaled(value(f"formats.{name}.one", 1.0), value(f"formats.{name}.many", 1.0))
            for name, entry in formats.items()
            if UNSUPPORTED not in entry
        },
        unsupported={name: entry[UNSUPPORTED] for name, entry in formats.items() if UNSUPPORTED in entry},
        attention=_curve(attention) if attention else None,
        tile=int(value("tile", 1)),
        shapes=tuple(int(x) for x, _ in shapes.points or ((shapes.value, 0.0),)) if shapes else (),
        graph_seconds=value("graph_seconds"),
        window=value("window"),
        slower={kind: fact.value for kind, fact in table("slower").items()},
        slots=int(value("slots", 1)),
        rows_exponent=value("rows_exponent"),
        start={of: _curve(fact) for of, fact in table("start").items()},
        start_exponent=value("start_exponent"),
        start_rows=value("start_rows", inf),
        adds=bool(value("added")),
        rows_quadratic=value("rows_quadratic"),
        sessions=int(value("sessions.count", 1)),
        session_bytes=value("sessions.size"),
        threads=int(value("threads")),
        token=value("token"),
    )


def cores_peak(cores: Sequence[float], threads: int) -> tuple[float, float]:
    """Operations per second of the fastest cores, one thread on each: over many rows, and over one.

    One row's work is divided evenly, so that the slowest core in use sets the pace. Of many rows' work part
    is taken by whoever is done: the mean of the even division and of all cores' rates.

    Args:
        cores: rates of the cores, the fastest first.
        threads: threads; 0 for one on every core.

    Raises:
        InputError: there are fewer cores.
    """
    if threads > len(cores):
        raise InputError(f"threads is {threads}; the CPU has {len(cores)} cores")
    used = cores[: threads or len(cores)]
    even = len(used) * min(used)
    return (sum(used) + even) / 2, even


def _curve(fact: Fact) -> Curve:
    """The curve of a fact's points, or a constant one of its value."""
    return Curve(fact.points or ((1.0, fact.value),))


def chosen_word(name: str, device: Mapping[str, Any], setting: str) -> str:
    """One of the settings of `WORD_SETTINGS`; InputError for a value that is none of its choices."""
    choices = WORD_SETTINGS[setting]
    word = str(device.get(setting, choices[0]))
    if word not in choices:
        raise InputError(f"{name}: {setting} is {word!r}; choose {' or '.join(choices)}")
    return word


def _main_processor(name: str, device: Mapping[str, Any]) -> str:
    processors = list(device["processors"])
    main = str(device.get("main", processors[0]))
    if main not in processors:
        raise InputError(f"{name}: main is {main!r}; the device file has {', '.join(processors)}")
    return main
