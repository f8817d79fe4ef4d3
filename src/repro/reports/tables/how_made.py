"""How a table's figures came about, in a line: emulated on which machines or measured, and what computed.

Counted from the records themselves. Must not know what a table shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repro.device.engines.engine_file import described
from repro.device.engines.evidence import PRINTED, sources
from repro.records.record import Record
from repro.reports.tables.stand_ins import checkpoint_of, each_name

EMULATED, MEASURED = "emulated", "measured"

BILLED = "cost model"
"""The component whose version is in a record's provenance if a machine was billed."""

OF_TABLES = "Ours are figures of the tables named, emulated or measured as each says."
"""The line of a page that gathers figures of several tables."""

FEW = 3
"""Machines that are named; more are counted."""


def words_of(records: Sequence[Record]) -> str:
    """ "emulated", "measured", both, or "" where no time, energy or memory was billed."""
    return " and ".join(
        word for word, some in ((EMULATED, _emulated(records)), (MEASURED, _timed(records))) if some
    )


def how_made(records: Sequence[Record]) -> str:
    """The machines, their engines, what their numbers rest on, and the weights that computed."""
    if not records:
        return ""
    return " ".join(
        [*_machines(_emulated(records)), *_hosts(_timed(records)), *_unbilled(records), *_weights(records)]
    )


def _emulated(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r.provenance.clock == "virtual" and BILLED in r.provenance.versions]


def _timed(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r.provenance.clock == "wall"]


def _machines(records: Sequence[Record]) -> list[str]:
    if not records:
        return []
    devices = each_name(str(r.provenance.config["device"].get("name")) for r in records)
    engines = each_name(_engine(r.provenance.config) for r in records)
    configs = [record.provenance.config for record in records]
    distinct = {(id(one["device"]), id(one.get("engine"))): one for one in configs}  # most have the same
    known = sources(map(described, distinct.values()))
    counts = {
        "measured": known["measured"],
        "printed": sum(known[source] for source in PRINTED),
        "fitted": known["fitted"],
        "assumed": known["assumed"],
    }
    said = ", ".join(f"{count} {source}" for source, count in counts.items())
    by = f" ({_named(engines, 'engines')})" if engines else ""
    return [f"Emulated on {_named(devices, 'machines')}{by}: of their {known.total()} numbers {said}."]


def _engine(config: Mapping[str, Any]) -> str:
    """The engine's name; of the device's own engine that of its file."""
    own = config["device"].get("engine")
    name = str((config.get("engine") or {}).get("name") or "")
    return f"engine {own or name}" if name == "own" and own else f"engine {name}" if name else ""


def _hosts(records: Sequence[Record]) -> list[str]:
    hosts = each_name(
        f"{host.get('system')} on {host.get('machine')}, {host.get('processor')}, {host.get('cores')} cores"
        for host in (r.provenance.host for r in records)
    )
    return [f"Measured: {_named(hosts, 'hosts')}."] if records else []


def _unbilled(records: Sequence[Record]) -> list[str]:
    return (
        [] if _emulated(records) or _timed(records) else ["No machine: figures of weights and texts alone."]
    )


def _weights(records: Sequence[Record]) -> list[str]:
    computed = each_name(_checkpoint(r.provenance.config) for r in records if r.provenance.weights != "none")
    billed = each_name(_target(r.provenance.config).get("precision") for r in _emulated(records))
    said = f"{_named(computed, 'checkpoints')} computed" if computed else "No weights computed"
    return [said + (f"; costs are of {_named(billed, 'formats')}" if billed else "") + "."]


def _checkpoint(config: Mapping[str, Any]) -> str:
    """The checkpoint's display name, and the number format of its arithmetic."""
    target = _target(config)
    name = checkpoint_of(config) or str(target.get("name", ""))
    return name and f"{name} in {target.get('dtype') or 'float32'}"


def _target(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("target") or {}


def _named(names: Sequence[str], many: str) -> str:
    if len(names) > FEW:
        return f"{len(names)} {many}"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
