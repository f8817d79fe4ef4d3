"""The figures of a record as totals over prompts, computed from its stored lines of detail.

Owns which lines make which figure. A figure counts only if its lines give the value that the record has, so
that an interval always belongs to the value beside it. Must not know tables.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from repro.records.record import Record, Round
from repro.reports.intervals.bootstrap import Total, Totals, figure, interval

Sums = dict[str, float]
"""What one prompt adds to each sum."""

CLOSE = 1e-6
"""Largest relative difference between a figure of the lines and the record's value."""

NARROW = 1e-3
"""Relative width of intervals that are left out: nothing in them depends on the prompts."""

ONE = "prompts"
"""The sum to which every prompt adds 1, so that a ratio to it is a mean."""

GENERATION = {
    "decode_tokens_per_s": ("emitted", "seconds"),
    "time_per_token": ("seconds", "emitted"),
    "acceptance_length": ("verified", "calls"),
    "accepted_draft_tokens": ("accepted", "calls"),
    "verification_width": ("rows", "calls"),
    "drafted_per_call": ("drafted", "draftings"),
    "error_rate": ("errors", "draftings"),
    "calls_per_error": ("draftings", "errors"),
    "drafted_per_error": ("drafted", "errors"),
    "joules_per_token": ("decode_joules", "emitted"),
    "rouge_l": ("rouge_l", ONE),
    "ttft": ("ttft", ONE),
    "latency": ("latency", ONE),
}
"""Figures of generated answers that are ratios of two sums over prompts."""

TOTALS = {
    "decode_seconds": "seconds",
    "decode_tokens": "emitted",
    "target_calls": "calls",
    "decode_joules": "decode_joules",
    "prefill_joules": "prefill_joules",
}
"""Figures of generated answers that are sums over prompts."""

ACCURACY = {"accuracy": ("right", 100.0), "baseline_accuracy": ("baseline_right", 100.0)}
SERVING = {
    "ttft": ("ttft", 1.0),
    "tpot": ("tpot", 1.0),
    "met": ("met", 100.0),
    "fell_back": ("fell_back", 100.0),
    "accuracy": ("right", 100.0),
    "accuracy_in_time": ("in_time", 100.0),
}
"""Means over examples or requests: the field of a line, and what it is multiplied by."""


def totals(record: Record, lines: Sequence[Round], answers: Sequence[Round] = ()) -> dict[str, Totals]:
    """Totals by prompt of the record's figures; only of those whose lines give the record's value.

    Args:
        record: a finished record.
        lines: its stored rounds, examples or requests.
        answers: its stored answers, which have what rounds do not: energy, similarity, latency.
    """
    found = {}
    for name, own in _parts(lines, answers).items():
        value, there = record.values.get(name), figure(own)
        number = isinstance(value, (int, float)) and there is not None
        if number and math.isclose(float(there or 0), float(value or 0), rel_tol=CLOSE, abs_tol=1e-12):
            found[name] = own
    return found


def with_interval(record: Record, lines: Sequence[Round], answers: Sequence[Round] = ()) -> Record:
    """The record with 95% intervals over prompts as uncertainty, where its lines give one.

    There is none if all prompts give nearly the same. On a wall clock the record's own uncertainty
    stays, which is that of repetitions.
    """
    if not record.done:
        return record
    each = {name: interval(own) for name, own in totals(record, lines, answers).items()}
    ends = {name: both for name, both in each.items() if both and not narrow(both)}
    own = record.uncertainty
    joined = {**ends, **own} if record.provenance.clock == "wall" else {**own, **ends}
    return replace(record, uncertainty=joined)


def narrow(ends: tuple[float, float]) -> bool:
    """Whether nothing in an interval depends on the prompts."""
    return ends[1] - ends[0] <= NARROW * abs(ends[1])


def _parts(lines: Sequence[Round], answers: Sequence[Round]) -> dict[str, Totals]:
    if not lines:
        return {}
    names = lines[0].keys()
    if {"request", "emitted"} <= names:
        return _generated(_sums(lines, answers))
    if {"met", "ttft"} <= names:
        return {name: _mean(lines, *how) for name, how in SERVING.items()}
    if "baseline_right" in names:
        return {name: _mean(lines, *how) for name, how in ACCURACY.items()}
    return {}


def _sums(lines: Sequence[Round], answers: Sequence[Round]) -> dict[str, Sums]:
    """The sums of each prompt over its rounds, and the figures of its answer."""
    found: dict[str, Sums] = defaultdict(lambda: defaultdict(float))
    for line in lines:
        own = found[str(line["request"])]
        emitted, accepted = _number(line, "emitted"), _number(line, "accepted")
        own["emitted"] += emitted
        own["seconds"] += _number(line, "end") - _number(line, "start")
        if rows := _number(line, "rows"):
            own["calls"] += 1
            own["verified"] += emitted
            own["accepted"] += accepted
            own["rows"] += rows
            if drafted := _number(line, "drafted"):
                own["draftings"] += 1
                own["drafted"] += drafted
                own["errors"] += accepted < _number(line, "reach")
    for line in answers:
        own = found[str(line["request"])]
        for name, value in line.items():
            if isinstance(value, (int, float)):
                own[name] = float(value)
    for own in found.values():
        own[ONE] = 1.0
    return found


def _generated(sums: Mapping[str, Sums]) -> dict[str, Totals]:
    share = 1 / len(sums)  # so that the sums below add up to one
    known = set.intersection(*({*own} for own in sums.values())) | {"draftings", "drafted", "errors"}
    known |= {"calls", "verified", "accepted", "rows"}
    found: dict[str, Totals] = {}
    for name, (above, below) in GENERATION.items():
        if {above, below} <= known:
            found[name] = {p: Total(own.get(above, 0.0), own.get(below, 0.0)) for p, own in sums.items()}
    for name, above in TOTALS.items():
        if above in known:
            found[name] = {p: Total(own.get(above, 0.0), share) for p, own in sums.items()}
    return found


def _mean(lines: Sequence[Round], name: str, scale: float) -> Totals:
    """Totals of a mean over the lines that have the value, each a prompt of its own."""
    found = {}
    for number, line in enumerate(lines):
        value = _in_time(line) if name == "in_time" else line.get(name)
        if value is not None:
            found[f"{number} {line.get('id')}"] = Total(scale * float(value), 1.0)
    return found


def _in_time(line: Round) -> float | None:
    return None if line.get("right") is None else float(bool(line["right"] and line["met"]))


def _number(line: Round, name: str) -> float:
    value = line.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0
