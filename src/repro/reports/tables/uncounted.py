"""Which seconds and joules of a request no column of a table has.

A table that shows when the first token comes, or how fast a method with a draft decodes, may leave out the
draft's prompt; one that shows joules a token leaves out those of prompts. Must not know rows or formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from repro.records.record import Record
from repro.reports.spec.spec import ColumnSpec

FIRST, DRAFT, DECODED = "the time to the first token", "the draft's prompt after it", "decoding"
PROMPT_JOULES, DECODE_JOULES = "the energy of the prompts", "the energy of decoding"
SECONDS, JOULES = (FIRST, DRAFT, DECODED), (PROMPT_JOULES, DECODE_JOULES)
"""What a request's seconds and its joules divide into."""

HAVE: Mapping[str, tuple[str, ...]] = {
    "ttft": (FIRST,),
    "prefill_tokens_per_s": (FIRST,),
    "prefill_seconds": (FIRST, DRAFT),
    "decode_seconds": (DECODED,),
    "decode_tokens_per_s": (DECODED,),
    "time_per_token": (DECODED,),
    "latency": SECONDS,
    "answer_seconds": SECONDS,
    "prefill_joules": (PROMPT_JOULES,),
    "decode_joules": (DECODE_JOULES,),
    "joules_per_token": (DECODE_JOULES,),
    "answer_joules": JOULES,
}
"""The parts of a request that values of records have, alone or in a ratio."""

LEAST = 0.0005
"""Seconds and joules that no page would show."""


def uncounted(shown: Iterable[tuple[ColumnSpec, Record]]) -> str:
    """A sentence that says which parts of a request, and how much, are in no column; "" if all are in one.

    Of cells of methods with a draft, whose time to the first token, decoding or energy a column has. A part
    of its seconds is looked for where a column has some of them, and joules likewise.

    Args:
        shown: columns with the records behind their figures.
    """
    had: dict[str, set[str]] = {}
    records: dict[str, Record] = {}
    for column, record in shown:
        if record.done and "draft" in record.provenance.inputs:
            records[record.key] = record
            names = filter(None, (column.value, column.total, column.per))
            had.setdefault(record.key, set()).update(part for name in names for part in HAVE.get(name, ()))
    missing: dict[str, list[float]] = {}
    for key, record in records.items():
        for part, amount in parts_of(record).items():
            kind = SECONDS if part in SECONDS else JOULES
            if part not in had[key] and had[key].intersection(kind) and amount > LEAST:
                missing.setdefault(part, []).append(amount)
    said = [
        f"{part} ({_range(missing[part])} {_unit(part)})" for part in (*SECONDS, *JOULES) if part in missing
    ]
    return f"Of a request with a draft, in no column: {'; '.join(said)}." if said else ""


def parts_of(record: Record) -> dict[str, float]:
    """Mean seconds and joules of each part of a record's requests that its values tell."""
    numbers = {name: float(v) for name, v in record.values.items() if isinstance(v, (int, float))}
    count = numbers.get("prompts") or 0.0
    found = {}
    if count and {"ttft", "prefill_seconds", "decode_seconds"} <= numbers.keys():
        found[FIRST] = numbers["ttft"]
        found[DRAFT] = numbers["prefill_seconds"] / count - numbers["ttft"]
        found[DECODED] = numbers["decode_seconds"] / count
    if count and {"prefill_joules", "decode_joules"} <= numbers.keys():
        found[PROMPT_JOULES] = numbers["prefill_joules"] / count
        found[DECODE_JOULES] = numbers["decode_joules"] / count
    return found


def _unit(part: str) -> str:
    return "s" if part in SECONDS else "J"


def _range(amounts: list[float]) -> str:
    """The least and the most of several amounts, in two digits."""
    ends = list(dict.fromkeys(f"{float(f'{end:.2g}'):g}" for end in (min(amounts), max(amounts))))
    return " to ".join(ends)
