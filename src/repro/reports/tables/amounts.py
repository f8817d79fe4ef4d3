"""How much stands behind a table: its cells, prompts and tokens, in a sentence; and what its records note.

Must not know what a table shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from repro.records.record import Record

COUNTED = {"prompts": "prompts", "rows": "dataset rows", "requests": "requests"}
"""Values that count what a cell was asked, with their names."""

DECODED = "decode_tokens"

UNACCEPTED = "no draft token was ever accepted"
"""Begins a note about a suspicious acceptance length of 1."""

ONE_ROW = 1.5
"""Rows of a verification below which hardly any holds a draft token, so that a length of 1 is no wonder."""


def amounts(records: Sequence[Record]) -> str:
    """Number of cells, and prompts, rows or requests and decoded tokens of a cell; "" without records."""
    if not records:
        return ""
    said = [f"{len(records)} {'cell' if len(records) == 1 else 'cells'}", *_each(records)]
    return f"n: {', '.join(said)}."


def notes_of(records: Sequence[Record]) -> list[str]:
    """The notes of all records, each once, sorted.

    That no draft token was accepted is left out where hardly any was verified: older cells say it of width 1,
    too.
    """
    return sorted({note for r in records for note in r.provenance.notes if not _explained(note, r)})


def _explained(note: str, record: Record) -> bool:
    width = record.values.get("verification_width")
    return note.startswith(UNACCEPTED) and isinstance(width, (int, float)) and width < ONE_ROW


def _each(records: Sequence[Record]) -> Iterator[str]:
    done = [record for record in records if record.done]
    for name, words in {**COUNTED, DECODED: "decoded tokens"}.items():
        found = sorted({value for r in done if isinstance(value := r.values.get(name), int)})
        if found:
            low, high = found[0], found[-1]
            yield f"{low if low == high else f'{low} to {high}'} {words} a cell"
    asked = {str(r.provenance.config.get("prompts")) for r in done if not r.values.keys() & COUNTED.keys()}
    if len(asked) == 1 and asked != {"None"}:
        yield f"{asked.pop()} texts a cell"
