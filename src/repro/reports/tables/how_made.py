"""What is said of the records behind a table: on which machines they were emulated or measured, what computed
and stands in for the paper's models, how much they are, and what of a request no column has.

Counted from the records themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.device.engines.engine_file import device_in_use
from repro.device.engines.evidence import PRINTED_SOURCES, sources
from repro.records.record import Record
from repro.reports.intervals.samples import COUNT_NAMES
from repro.reports.reference.names import ANY_PAPER, load_names
from repro.reports.spec.spec import ColumnSpec

EMULATED, MEASURED = "emulated", "measured"

BILLED_COMPONENT = "cost model"
"""The component whose version is in a record's provenance if a machine was billed."""

TABLES_LINE = "Ours are figures of the tables named, emulated or measured as each says."
"""The line of a page that gathers figures of several tables."""

MOST_NAMED, MOST_MODELS_NAMED = 3, 2
"""Machines and models that are named; more machines are counted, more models are "the models"."""


def words_of(records: Sequence[Record]) -> str:
    """ "emulated", "measured", both, or "" where no time, energy or memory was billed."""
    return " and ".join(
        word for word, part in ((EMULATED, _virtual(records)), (MEASURED, _wall(records))) if part
    )


def how_made(records: Sequence[Record]) -> str:
    """The machines, their engines, what their numbers rest on, and the weights that computed."""
    if not records:
        return ""
    return " ".join(
        [*_machines(_virtual(records)), *_hosts(_wall(records)), *_no_machine(records), *_weights(records)]
    )


def _virtual(records: Sequence[Record]) -> list[Record]:
    return [
        r for r in records if r.provenance.clock == "virtual" and BILLED_COMPONENT in r.provenance.versions
    ]


def _wall(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r.provenance.clock == "wall"]


def _machines(records: Sequence[Record]) -> list[str]:
    if not records:
        return []
    devices = each_name(str(r.provenance.config["device"].get("name")) for r in records)
    engines = each_name(_engine(r.provenance.config) for r in records)
    configs = [record.provenance.config for record in records]
    distinct_configs = {(id(c["device"]), id(c.get("engine"))): c for c in configs}  # most have the same
    tally = sources(map(device_in_use, distinct_configs.values()))
    counts = {
        "measured": tally["measured"],
        "printed": sum(tally[source] for source in PRINTED_SOURCES),
        "fitted": tally["fitted"],
        "assumed": tally["assumed"],
    }
    text = ", ".join(f"{count} {source}" for source, count in counts.items())
    engine_text = f" ({_listing(engines, 'engines')})" if engines else ""
    return [
        f"Emulated on {_listing(devices, 'machines')}{engine_text}: of their {tally.total()} numbers {text}."
    ]


def _engine(config: Mapping[str, Any]) -> str:
    """The engine's name; of the device's own engine that of its file."""
    engine = config["device"].get("engine")
    name = str((config.get("engine") or {}).get("name") or "")
    return f"engine {engine or name}" if name == "own" and engine else f"engine {name}" if name else ""


def _hosts(records: Sequence[Record]) -> list[str]:
    hosts = each_name(
        f"{host.get('system')} on {host.get('machine')}, {host.get('processor')}, {host.get('cores')} cores"
        for host in (r.provenance.host for r in records)
    )
    return [f"Measured: {_listing(hosts, 'hosts')}."] if records else []


def _no_machine(records: Sequence[Record]) -> list[str]:
    return [] if _virtual(records) or _wall(records) else ["No machine: figures of weights and texts alone."]


def _weights(records: Sequence[Record]) -> list[str]:
    weights = each_name(_checkpoint(r.provenance.config) for r in records if r.provenance.weights != "none")
    billed_formats = each_name(_target(r.provenance.config).get("precision") for r in _virtual(records))
    text = f"{_listing(weights, 'checkpoints')} computed" if weights else "No weights computed"
    return [text + (f"; costs are of {_listing(billed_formats, 'formats')}" if billed_formats else "") + "."]


def _checkpoint(config: Mapping[str, Any]) -> str:
    """The checkpoint's display name, and the number format of its arithmetic."""
    target = _target(config)
    name = checkpoint_of(config) or str(target.get("name", ""))
    return name and f"{name} in {target.get('dtype') or 'float32'}"


def _target(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("target") or {}


def _listing(names: Sequence[str], plural_noun: str) -> str:
    if len(names) > MOST_NAMED:
        return f"{len(names)} {plural_noun}"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def stand_ins(records: Sequence[Record]) -> str:
    """Which checkpoints compute in place of which models, and whether only costs are known; "" if neither.

    Records without weights count only if all are without: a table of both says which in its marks.
    """
    if records and all(record.provenance.weights == "none" for record in records):
        return "costs only, no weights computed"
    proxies = [record for record in records if record.provenance.weights == "proxy"]
    checkpoints = each_name(checkpoint_of(record.provenance.config) for record in proxies)
    if not checkpoints:
        return ""
    models = each_name(record.labels.get("target", "") for record in proxies)
    text = " and ".join(models) if 0 < len(models) <= MOST_MODELS_NAMED else "the models"
    return (
        f"{' and '.join(checkpoints)} {'compute' if len(checkpoints) > 1 else 'computes'} in place of {text}"
    )


def checkpoint_of(config: Mapping[str, Any]) -> str:
    """Display name of the target's checkpoint: of the weights that it names, whatever its file is called."""
    checkpoint = (config.get("target") or {}).get("checkpoint") or {}
    name, folder = str(checkpoint.get("name") or ""), checkpoint.get("folder")
    repo = str((checkpoint.get("hub") or {}).get("repo") or "")
    if folder or (repo and repo != _repo(name)):
        return Path(str(folder or repo or name)).name
    return load_names().find(ANY_PAPER, "checkpoint", name).name


@cache
def _repo(name: str) -> str:
    """The hub's repository in a checkpoint's file; "" without one."""
    path = conf_dir() / "model" / "checkpoint" / f"{name}.yaml"
    hub = read_mapping(path).get("hub") if path.is_file() else None
    return str((hub or {}).get("repo") or "")


def says_stand_ins(records: Sequence[Record]) -> bool:
    """Whether footnotes about stand-ins hold: not where all records have been asked for other weights."""
    return any(r.provenance.config.get("weights", "stand_in") == "stand_in" for r in records) or not records


def each_name(names: Iterable[str | None]) -> list[str]:
    """The names that are there, each once, sorted."""
    return sorted({name for name in names if name})


UNACCEPTED_PREFIX = "no draft token was ever accepted"
"""Begins a note about a suspicious acceptance length of 1."""

ONE_ROW_LIMIT = 1.5
"""Rows of a verification below which hardly any holds a draft token, so that a length of 1 is no wonder."""


def amounts(records: Sequence[Record]) -> str:
    """Number of cells, and prompts, rows or requests and decoded tokens of a cell; "" without records."""
    if not records:
        return ""
    phrases = [f"{len(records)} {'cell' if len(records) == 1 else 'cells'}"]
    results = [record for record in records if record.done]
    for name, noun in {**COUNT_NAMES, "decode_tokens": "decoded tokens"}.items():
        counts = [value for r in results if isinstance(value := r.values.get(name), int)]
        if counts:
            phrases.append(
                f"{' to '.join(dict.fromkeys(map(str, (min(counts), max(counts)))))} {noun} a cell"
            )
    texts = {
        str(r.provenance.config.get("prompts")) for r in results if not r.values.keys() & COUNT_NAMES.keys()
    }
    if len(texts) == 1 and texts != {"None"}:
        phrases.append(f"{texts.pop()} texts a cell")
    return f"n: {', '.join(phrases)}."


def notes_of(records: Sequence[Record]) -> list[str]:
    """The notes of all records, each once, sorted.

    That no draft token was accepted is left out where hardly any was verified: older cells say it of width 1,
    too.
    """
    return sorted({note for r in records for note in r.provenance.notes if not _is_explained(note, r)})


def _is_explained(note: str, record: Record) -> bool:
    width = record.values.get("verification_width")
    return note.startswith(UNACCEPTED_PREFIX) and isinstance(width, (int, float)) and width < ONE_ROW_LIMIT


FIRST_TOKEN, DRAFT_PROMPT, DECODING = "the time to the first token", "the draft's prompt after it", "decoding"
PROMPT_JOULES, DECODE_JOULES = "the energy of the prompts", "the energy of decoding"
PARTS = {"s": (FIRST_TOKEN, DRAFT_PROMPT, DECODING), "J": (PROMPT_JOULES, DECODE_JOULES)}
"""What a request's seconds and its joules divide into."""

PARTS_OF_VALUE: Mapping[str, tuple[str, ...]] = {
    "ttft": (FIRST_TOKEN,),
    "prefill_tokens_per_s": (FIRST_TOKEN,),
    "prefill_seconds": (FIRST_TOKEN, DRAFT_PROMPT),
    "decode_seconds": (DECODING,),
    "decode_tokens_per_s": (DECODING,),
    "time_per_token": (DECODING,),
    "latency": PARTS["s"],
    "answer_seconds": PARTS["s"],
    "prefill_joules": (PROMPT_JOULES,),
    "decode_joules": (DECODE_JOULES,),
    "joules_per_token": (DECODE_JOULES,),
    "answer_joules": PARTS["J"],
}
"""The parts of a request that values of records have, alone or in a ratio."""

LEAST_AMOUNT = 0.0005
"""Seconds and joules that no page would show."""


def uncounted_parts(figures: Iterable[tuple[ColumnSpec, Record]]) -> str:
    """A sentence that says which parts of a request, and how much, are in no column; "" if all are in one.

    Of cells of methods with a draft, whose time to the first token, decoding or energy a column has: a table
    may leave out the draft's prompt, or the joules of prompts. A part of a request's seconds is looked for
    where a column has some of them, and joules likewise.

    Args:
        figures: columns with the records behind their figures.
    """
    counted_parts: dict[str, set[str]] = defaultdict(set)
    records: dict[str, Record] = {}
    for column, record in figures:
        if record.done and "draft" in record.provenance.inputs:
            records[record.key] = record
            for name in filter(None, (column.value, column.total, column.per)):
                counted_parts[record.key].update(PARTS_OF_VALUE.get(name, ()))
    clauses = []
    for unit, unit_parts in PARTS.items():
        for part in unit_parts:
            leftovers = [
                amount
                for key, record in records.items()
                if part not in counted_parts[key] and counted_parts[key].intersection(unit_parts)
                if (amount := _parts(record).get(part, 0.0)) > LEAST_AMOUNT
            ]
            if leftovers:
                ends = dict.fromkeys(f"{float(f'{end:.2g}'):g}" for end in (min(leftovers), max(leftovers)))
                clauses.append(f"{part} ({' to '.join(ends)} {unit})")
    return f"Of a request with a draft, in no column: {'; '.join(clauses)}." if clauses else ""


def _parts(record: Record) -> dict[str, float]:
    """Mean seconds and joules of each part of a record's requests that its values tell."""
    numbers = {name: float(v) for name, v in record.values.items() if isinstance(v, (int, float))}
    count, amounts_by_part = numbers.get("prompts") or 0.0, {}
    if count and {"ttft", "prefill_seconds", "decode_seconds"} <= numbers.keys():
        amounts_by_part[FIRST_TOKEN] = numbers["ttft"]
        amounts_by_part[DRAFT_PROMPT] = numbers["prefill_seconds"] / count - numbers["ttft"]
        amounts_by_part[DECODING] = numbers["decode_seconds"] / count
    if count and {"prefill_joules", "decode_joules"} <= numbers.keys():
        amounts_by_part[PROMPT_JOULES] = numbers["prefill_joules"] / count
        amounts_by_part[DECODE_JOULES] = numbers["decode_joules"] / count
    return amounts_by_part
