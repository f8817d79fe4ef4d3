"""Which values of a record its run really computed.

Must not know tables or formats.
"""

from __future__ import annotations

from repro.core.registry import discover, lookup, names
from repro.records.record import Record, Scalar

AGAINST_TARGET = ("exact_match", "rouge_l", "rouge_l_tokens", "ties")
"""Values that compare an answer's text with the target's own."""


def other_arithmetic(record: Record) -> str:
    """What the cell's method computes with, if the run computed its text with something else; else ""."""
    method = (record.provenance.config.get("method") or {}).get("name")
    discover("repro.methods")
    return str(getattr(lookup("method", method), "arithmetic", "")) if method in names("method") else ""


def not_compared(method: str, arithmetic: str) -> str:
    """Why a method's text is not compared with the target's."""
    return (
        f"{method} computes with {arithmetic}, which did not run: its text is not compared with the target's."
    )


def known_values(record: Record) -> dict[str, Scalar]:
    """A record's values, without comparisons of a text that the method's own arithmetic did not compute."""
    hidden = AGAINST_TARGET if other_arithmetic(record) else ()
    return {name: value for name, value in record.values.items() if name not in hidden}


def known_value(record: Record, name: str) -> Scalar:
    """One of `known_values`, or the peak bytes of a kind of memory."""
    return None if name in AGAINST_TARGET and other_arithmetic(record) else record.figure(name)
