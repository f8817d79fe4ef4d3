"""Devices on the terminal: their rates, and the source of every number.

Owns the columns. Must not know which devices there are.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from repro.core.errors import InputError
from repro.core.registry import require_choice
from repro.device.device_file import FACT_SOURCES, Fact, facts
from repro.device.engines.engine_file import (
    OWN,
    PUBLIC,
    device_file,
    device_files,
    engine_of,
    read_engine,
    with_engine,
)
from repro.device.engines.resolved_file import resolved_text
from repro.device.facts.holds import HOLDS_KEY

TERA, GIGA = 1e12, 1e9
# Columns of the summary: heading, place in the file, unit.
RATE_COLUMNS = (
    ("cpu int8\nTOP/s", "processors.cpu.peak.int8", TERA),
    ("cpu\nGB/s", "processors.cpu.bandwidth", GIGA),
    ("gpu fp16\nTFLOP/s", "processors.gpu.peak.fp16", TERA),
    ("gpu\nGB/s", "processors.gpu.bandwidth", GIGA),
    ("npu int8\nTOP/s", "processors.npu.peak.int8", TERA),
    ("npu\nGB/s", "processors.npu.bandwidth", GIGA),
    ("DRAM\nGB/s", "dram.bandwidth", GIGA),
    ("budget\nGB", "dram.budget", GIGA),
    ("flash\nGB/s", "flash.bandwidth", GIGA),
)
SCREEN_WIDTH = 160  # console width when output is not a terminal


def devices_in_use(names: Sequence[str] = (), engine: str = "") -> dict[str, Mapping[str, Any]]:
    """Devices by name, as an engine uses them: all that have a file or the wanted ones, in the given order.

    Without an engine a device is as the engine uses it that its file names, or as its file says.

    Raises:
        InputError: there is no such device or engine, or the engine does not fit a device.
    """
    devices = {name: device_file(name) for name in (names or device_files())}
    content = read_engine(engine or OWN)
    return {
        name: with_engine(device, engine_of(device, content) if engine or device.get("engine") else None)
        for name, device in devices.items()
    }


def checked_facts(name: str, device: Mapping[str, Any]) -> list[Fact]:
    """A device's facts; errors name the device."""
    try:
        return list(facts(device))
    except InputError as wrong:
        raise InputError(f"device {name}: {wrong}") from None


def listing(devices: Mapping[str, Mapping[str, Any]], source: str) -> Table:
    """Every fact of one source: device, place, printed value, note and fitted cells."""
    table = Table(title=f"Facts whose source is: {source}", title_justify="left")
    for heading in ("device", "place", "value", "note"):
        table.add_column(heading, overflow="fold")
    for name, device in devices.items():
        for fact in checked_facts(name, device):
            if fact.source == source:
                table.add_row(
                    name, fact.path, fact.printed, "; ".join(filter(None, (fact.note, *fact.cells)))
                )
    table.caption = f"{table.row_count} facts"
    return table


def summary(devices: Mapping[str, Mapping[str, Any]]) -> Table:
    """One row per device: its rates, its bandwidths, and the number of its facts by source."""
    table = Table(title="Devices", title_justify="left")
    table.add_column("device", no_wrap=True)
    for heading in (*(column[0] for column in RATE_COLUMNS), *FACT_SOURCES):
        table.add_column(heading, justify="right")
    for name, device in devices.items():
        device_facts = checked_facts(name, device)
        counts = Counter(fact.source for fact in device_facts)
        table.add_row(name, *_rates(device_facts), *(str(counts[source] or "-") for source in FACT_SOURCES))
    return table


def rests_on(devices: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Which measured rows the numbers of each processor rest on, where an engine says so, in lines."""
    for name, device in devices.items():
        for processor, table in device["processors"].items():
            if note := (table.get(HOLDS_KEY) or {}).get("note"):
                yield f"{name}, {processor}: {note}"


def _rates(device_facts: Iterable[Fact]) -> list[str]:
    facts_by_path = {fact.path: fact for fact in device_facts}
    return [_show(facts_by_path.get(path), unit) for _, path, unit in RATE_COLUMNS]


def _show(fact: Fact | None, unit: float) -> str:
    """A fact in the column's unit; for a curve, its maximum."""
    if fact is None:
        return "-"
    return f"{max([y for _, y in fact.points] or [fact.value]) / unit:.4g}"


def show_devices(names: Sequence[str], engine: str, source: str) -> None:
    """Print what cells with one device bill; of several, or all, a row each, or all facts of one source.

    Raises:
        InputError: there is no such device, engine or source.
    """
    if source:
        require_choice("--source", source, FACT_SOURCES)
    elif len(names) == 1:
        print(resolved_text(names[0], engine or PUBLIC), end="")
        return
    console = Console(width=None if sys.stdout.isatty() else SCREEN_WIDTH)
    devices = devices_in_use(names, engine)
    console.print(listing(devices, source) if source else summary(devices))
    if names:
        console.print("\n".join(rests_on(devices)), soft_wrap=True)
