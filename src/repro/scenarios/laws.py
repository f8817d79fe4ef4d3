"""Conservation laws that every record obeys: what its figures and lines of detail must add up to.

A law is arithmetic on the definitions of figures, not on how they were computed: phases partition a request,
totals are sums of lines, a rate times a time is an amount. `Scenario.run` checks them before a record is
stored, a test on every committed record. Must not know methods, devices or tables.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from repro.records.record import Round, Scalar

TOLERANCE = 1e-6
"""Relative difference up to which two sides of a law are equal; stored numbers have ten digits."""

SHARES = (
    *("flash_busy", "draft_hidden", "rows_kept", "error_rate", "retention", "exact_match", "prefill_bubbles"),
    *("deciding_share", "deciding_share_of_full", "switch_share", "read_share"),
)
"""Figures between 0 and 1."""

PERCENTAGES = (
    "accuracy",
    "baseline_accuracy",
    "full_accuracy",
    "draft_correctness",
    "met",
    "fell_back",
    "rouge_l",
)
"""Figures between 0 and 100."""

GENERATION_LAWS = (
    "all latency is prefill or decoding: prompts * latency = prefill_seconds + decode_seconds",
    "decode_tokens_per_s * decode_seconds = decode_tokens",
    "time_per_token * decode_tokens = decode_seconds",
    "joules_per_token * decode_tokens = decode_joules",
    "a pass loads or computes: target_loading + target_computing = target_pass",
    "first tokens come within the prefills: prompts * ttft <= prefill_seconds",
    "verifications lie in the decoding: target_calls * target_pass <= decode_seconds",
    "draft passes lie in the decoding: draft_seconds <= decode_seconds",
    "verifications emit decoded tokens: target_calls * acceptance_length <= decode_tokens",
    "the bonus token comes on top: accepted_draft_tokens <= acceptance_length",
    "there is one bonus token: acceptance_length <= accepted_draft_tokens + 1",
)
"""Laws of cells in which a method answers: what they mean, and a relation of sums of products of figures."""

Numbers = Mapping[str, float]


class BrokenLawError(RuntimeError):
    """A cell's figures contradict each other: a fault of the code, so that no record is stored."""


def require(broken: Iterable[str]) -> None:
    """Raise BrokenLawError with the laws that a cell breaks, if any."""
    if sentences := [*broken]:
        raise BrokenLawError("figures that contradict each other:\n" + "\n".join(sentences))


def broken_laws(
    values: Mapping[str, Scalar], lines: Sequence[Round], answers: Sequence[Round]
) -> Iterator[str]:
    """A sentence for each law that a record's values and its stored lines of detail break."""
    numbers = {name: float(value) for name, value in values.items() if isinstance(value, (int, float))}
    for name in SHARES:
        yield from _within(name, numbers, 1.0)
    for name in PERCENTAGES:
        yield from _within(name, numbers, 100.0)
    for law in GENERATION_LAWS if "decode_seconds" in numbers else ():
        left_text, relation, right_text = re.split(" (<=|=) ", law.rpartition(": ")[2])
        check = _equal if relation == "=" else _at_most
        yield from check(law, _value(left_text, numbers), _value(right_text, numbers))
    if lines and {"request", "emitted", "start"} <= lines[0].keys():
        yield from _of_rounds(numbers, lines)
        yield from _of_answers(numbers, lines, answers)
    if lines and {"ttft", "switch", "deciding"} <= lines[0].keys():
        yield from _of_requests(lines)


def _of_rounds(numbers: Numbers, lines: Sequence[Round]) -> Iterator[str]:
    """Rounds follow each other without a gap, and their tokens and seconds add up to the totals."""
    previous: Round | None = None
    for line in lines:
        location = f"round {line['round']} of request {line['request']}"
        emitted, accepted = _number(line, "emitted"), _number(line, "accepted")
        start, end = _number(line, "start"), _number(line, "end")
        if previous and previous["request"] == line["request"] and _number(line, "round"):
            yield from _equal(f"{location} starts where the last one ends", start, _number(previous, "end"))
        yield from _at_most(f"{location} ends after its start", start, end)
        if line["rows"] and emitted - accepted not in (0, 1):
            emits = f"{location} emits its accepted draft tokens and at most one more"
            yield f"{emits}: {emitted:g}, {accepted:g}"
        chain = [accepted, _number(line, "reach"), _number(line, "drafted")]
        if chain != sorted(chain):
            yield f"{location}: accepted <= reach <= drafted does not hold for {chain}"
        previous = line
    seconds = math.fsum(_number(line, "end") - _number(line, "start") for line in lines)
    yield from _equal("the rounds' seconds add up to decode_seconds", seconds, numbers.get("decode_seconds"))
    token_count = math.fsum(_number(line, "emitted") for line in lines)
    yield from _equal("the rounds' tokens add up to decode_tokens", token_count, numbers.get("decode_tokens"))


def _of_answers(numbers: Numbers, lines: Sequence[Round], answers: Sequence[Round]) -> Iterator[str]:
    """The answers' energies add up to the totals; what comes before decoding has at least the first token."""
    if len({str(answer.get("request")) for answer in answers}) != numbers.get("prompts"):
        return  # repeated on a real device, and stored once
    decode_seconds: dict[str, float] = defaultdict(float)
    for line in lines:
        decode_seconds[str(line["request"])] += _number(line, "end") - _number(line, "start")
    for total in ("decode_joules", "prefill_joules"):
        if total in answers[0]:
            joules = math.fsum(_number(answer, total) for answer in answers)
            yield from _equal(f"the answers' {total} add up to the total", joules, numbers.get(total))
    for answer in answers:
        if "latency" in answer and "ttft" in answer:
            undecoded_seconds = _number(answer, "latency") - decode_seconds[str(answer["request"])]
            law = f"request {answer['request']}: its first token comes before it is decoded"
            yield from _at_most(law, _number(answer, "ttft"), undecoded_seconds)


def _of_requests(lines: Sequence[Round]) -> Iterator[str]:
    """Deciding and switching are parts of the time to the first token."""
    for line in lines:
        part_seconds = _number(line, "switch") + _number(line, "deciding")
        yield from _at_most(
            f"request {line.get('id')}: switch + deciding <= ttft", part_seconds, _number(line, "ttft")
        )


def _within(name: str, numbers: Numbers, limit: float) -> Iterator[str]:
    value = numbers.get(name)
    if value is not None and not -TOLERANCE * limit <= value <= limit * (1 + TOLERANCE):
        yield f"{name} lies between 0 and {limit:g}: it is {value:g}"


def _equal(law: str, left: float | None, right: float | None) -> Iterator[str]:
    if (
        left is not None
        and right is not None
        and not math.isclose(left, right, rel_tol=TOLERANCE, abs_tol=1e-9)
    ):
        yield f"{law}: {left:.10g} is not {right:.10g}"


def _at_most(law: str, smaller: float | None, larger: float | None) -> Iterator[str]:
    if smaller is not None and larger is not None and smaller > larger + TOLERANCE * abs(larger) + 1e-9:
        yield f"{law}: {smaller:.10g} is more than {larger:.10g}"


def _value(expression: str, numbers: Numbers) -> float | None:
    """The value of a sum of products of figures and whole numbers; None without one of the figures."""
    terms = [term.split(" * ") for term in expression.split(" + ")]
    try:
        return math.fsum(
            math.prod(float(name) if name.isdigit() else numbers[name] for name in term) for term in terms
        )
    except KeyError:
        return None


def _number(line: Round, name: str) -> float:
    value = line.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0
