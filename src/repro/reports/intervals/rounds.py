"""The figures of a record as totals over prompts, computed from its stored lines of detail.

Owns which lines make which figure. A figure counts only if its lines give the value that the record has, so
that an interval always belongs to the value beside it. Must not know tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from repro.records.record import Record, Round
from repro.records.results import Results
from repro.reports.intervals.bootstrap import Total, Totals, figure, interval

Part = Callable[[Round], tuple[float, float] | None]
"""What one line adds to the two sums of a figure; `None` if it does not count."""

CLOSE = 1e-6
"""Largest relative difference between a figure of the lines and the record's value."""

NARROW = 1e-3
"""Relative width of intervals that are left out: nothing in them depends on the prompts."""


def _ratio(above: str, below: str) -> Part:
    """Sums of two columns; `seconds` is the time of a round."""
    return lambda line: (_number(line, above), _number(line, below))


def _verified(above: str) -> Part:
    """Mean over verifications: rounds in which the target ran."""
    return lambda line: (_number(line, above), 1.0) if line.get("rows") else None


def _drafted(above: str) -> Part:
    """Mean over verifications that had draft tokens."""
    return lambda line: (_number(line, above), 1.0) if line.get("rows") and line.get("drafted") else None


def _mean(name: str, scale: float = 1.0) -> Part:
    """Mean over lines that have the value."""
    return lambda line: None if line.get(name) is None else (scale * _number(line, name), 1.0)


def _in_time(line: Round) -> tuple[float, float] | None:
    return None if line.get("right") is None else (100.0 * bool(line["right"] and line["met"]), 1.0)


GENERATION: Mapping[str, Part] = {
    "decode_tokens_per_s": _ratio("emitted", "seconds"),
    "time_per_token": _ratio("seconds", "emitted"),
    "acceptance_length": _verified("emitted"),
    "accepted_draft_tokens": _verified("accepted"),
    "verification_width": _verified("rows"),
    "drafted_per_call": _drafted("drafted"),
}
ACCURACY: Mapping[str, Part] = {
    "accuracy": _mean("right", 100.0),
    "baseline_accuracy": _mean("baseline_right", 100.0),
}
SERVING: Mapping[str, Part] = {
    "ttft": _mean("ttft"),
    "tpot": _mean("tpot"),
    "met": _mean("met", 100.0),
    "fell_back": _mean("fell_back", 100.0),
    "accuracy": _mean("right", 100.0),
    "accuracy_in_time": _in_time,
}
KINDS = (({"request", "emitted"}, GENERATION), ({"met", "ttft"}, SERVING), ({"baseline_right"}, ACCURACY))
"""Columns by which the lines of a scenario are known, and the figures that they make."""


def totals(record: Record, lines: Sequence[Round]) -> dict[str, Totals]:
    """Totals by prompt of the record's figures; only of those whose lines give the record's value.

    Args:
        record: a finished record.
        lines: its stored rounds, examples or requests.
    """
    found = {}
    for name, part in _parts(lines).items():
        own, value = _by_prompt(lines, part), record.values.get(name)
        there = figure(own)
        if (
            isinstance(value, (int, float))
            and there is not None
            and math.isclose(there, value, rel_tol=CLOSE)
        ):
            found[name] = own
    return found


def with_intervals(records: Sequence[Record], store: Results) -> list[Record]:
    """The records with 95% intervals over prompts as uncertainty, where their lines give one.

    There is none if all prompts give nearly the same. On a wall clock the record's own uncertainty
    stays, which is that of repetitions.
    """
    return [with_interval(record, store.rounds(record.key)) for record in records]


def with_interval(record: Record, lines: Sequence[Round]) -> Record:
    """As `with_intervals`, of one record and its lines."""
    if not record.done:
        return record
    each = {name: interval(own) for name, own in totals(record, lines).items()}
    ends = {name: both for name, both in each.items() if both and both[1] - both[0] > NARROW * abs(both[1])}
    own = record.uncertainty
    joined = {**ends, **own} if record.provenance.clock == "wall" else {**own, **ends}
    return replace(record, uncertainty=joined)


def _parts(lines: Sequence[Round]) -> Mapping[str, Part]:
    if not lines:
        return {}
    return next((parts for columns, parts in KINDS if columns <= lines[0].keys()), {})


def _by_prompt(lines: Sequence[Round], part: Part) -> Totals:
    """One total for each prompt; a prompt that was served several times adds up."""
    sums: dict[str, tuple[float, float]] = {}
    for number, line in enumerate(lines):
        added = part(line)
        name = str(line["request"]) if "request" in line else f"{number} {line.get('id')}"
        if added is not None:
            above, below = sums.get(name, (0.0, 0.0))
            sums[name] = (above + added[0], below + added[1])
    return {name: Total(*both) for name, both in sums.items()}


def _number(line: Round, name: str) -> float:
    if name == "seconds":
        return _number(line, "end") - _number(line, "start")
    value = line[name]
    assert isinstance(value, (int, float))
    return float(value)
