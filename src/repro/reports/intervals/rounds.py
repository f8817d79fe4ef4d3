"""The figures of a record as totals over prompts, computed from its stored lines of detail.

Owns which lines make which figure. A figure counts only if its lines give the value that the record has, so
that an interval always belongs to the value beside it. Must not know tables.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from repro.records.record import Record, Round, Spread
from repro.reports.intervals.bootstrap import Total, Totals, figure, interval

Sums = dict[str, float]
"""What one prompt adds to each sum."""

RELATIVE_TOLERANCE = 1e-6
"""Largest relative difference between a figure of the lines and the record's value."""

NARROW_WIDTH = 1e-3
"""Relative width of intervals that are left out: nothing in them depends on the prompts."""

PROMPT_COUNT = "prompts"
"""The sum to which every prompt, example or request adds 1, so that a ratio to it is a mean."""

GENERATION_RATIOS = {
    "decode_tokens_per_s": ("emitted", "seconds"),
    "time_per_token": ("seconds", "emitted"),
    "acceptance_length": ("verified", "calls"),
    "accepted_draft_tokens": ("accepted", "calls"),
    "verification_width": ("rows", "calls"),
    "drafted_per_call": ("drafted", "draftings"),
    "error_rate": ("errors", "draftings"),
    "calls_per_error": ("draftings", "errors"),
    "drafted_per_error": ("drafted", "errors"),
    "retention": ("accepted", "possible"),
    "draft_correctness": ("right", "drafted"),
    "joules_per_token": ("decode_joules", "emitted"),
    "rouge_l": ("rouge_l", PROMPT_COUNT),
    "ttft": ("ttft", PROMPT_COUNT),
    "latency": ("latency", PROMPT_COUNT),
    "answer_seconds": ("latency", PROMPT_COUNT),
    "answer_joules": ("answer_joules", PROMPT_COUNT),
    "target_pass": ("target_seconds", "target_passes"),
    "target_loading": ("loading_seconds", "target_passes"),
    "target_computing": ("computing_seconds", "target_passes"),
    "rows_kept": ("kept_rows", "target_rows"),
    "draft_pass": ("alone_seconds", "alone_passes"),
    "provisional_pass": ("beside_seconds", "beside_passes"),
    "draft_hidden": ("hidden_seconds", "draft_seconds"),
    "target_projection": ("projecting_seconds", "calls"),
    "target_wasted": ("wasted_seconds", "calls"),
}
"""Figures of generated answers that are ratios of two sums over prompts."""

GENERATION_SUMS = {
    "decode_seconds": "seconds",
    "decode_tokens": "emitted",
    "target_calls": "calls",
    "useless_calls": "useless",
    "draft_seconds": "draft_seconds",
    "decode_joules": "decode_joules",
    "prefill_joules": "prefill_joules",
}
"""Figures of generated answers that are sums over prompts."""

COUNTED_SUMS = ("calls", "verified", "accepted", "rows", "draftings", "drafted", "errors", "useless", "right")
"""Sums of rounds, to which a prompt without a verification adds nothing."""

ACCURACY_RATIOS = {
    "accuracy": ("right", PROMPT_COUNT),
    "baseline_accuracy": ("baseline_right", PROMPT_COUNT),
    "difference": ("gained", PROMPT_COUNT),
    "last_token": ("last_right", PROMPT_COUNT),
    "last_token_difference": ("last_gained", PROMPT_COUNT),
    "nats_per_token": ("nats", "tokens"),
    "nats_lost": ("nats_more", "tokens"),
}
SERVING_RATIOS = {
    "ttft": ("ttft", PROMPT_COUNT),
    "tpot": ("tpot", PROMPT_COUNT),
    "full_ttft": ("full_ttft", PROMPT_COUNT),
    "full_tpot": ("full_tpot", PROMPT_COUNT),
    "ttft_speedup": ("full_ttft", "ttft"),
    "tpot_speedup": ("full_tpot", "tpot"),
    "prompt_level": ("prompt_level", PROMPT_COUNT),
    "model_level": ("model_level", PROMPT_COUNT),
    "prompt_tokens": ("prompt_tokens", PROMPT_COUNT),
    "read_share": ("read", "prompt_tokens"),
    "switch_seconds": ("switch", "switched"),
    "switch_share": ("switch", "ttft"),
    "deciding_seconds": ("deciding", PROMPT_COUNT),
    "deciding_share": ("deciding", "ttft"),
    "deciding_share_of_full": ("deciding_of_full", PROMPT_COUNT),
    "met": ("met", PROMPT_COUNT),
    "fell_back": ("fell_back", PROMPT_COUNT),
    "accuracy": ("right", PROMPT_COUNT),
    "accuracy_in_time": ("in_time", PROMPT_COUNT),
}
"""Figures of examples and of requests that are ratios of two sums over them."""

PERCENT_FIELDS = ("right", "baseline_right", "last_right", "baseline_last", "met", "fell_back")
"""Fields of examples and requests that are 0 or 1, and whose mean is in percent."""


def totals(record: Record, lines: Sequence[Round], answers: Sequence[Round] = ()) -> dict[str, Totals]:
    """Totals by prompt of the record's figures; only of those whose lines give the record's value.

    Args:
        record: a finished record.
        lines: its stored rounds, examples or requests.
        answers: its stored answers, which have what rounds do not: energy, similarity, latency.
    """
    by_figure = {}
    for name, prompt_totals in _parts(lines, answers).items():
        value, sample_ratio = record.figure(name), figure(prompt_totals)
        is_number = isinstance(value, (int, float)) and sample_ratio is not None
        if is_number and math.isclose(
            float(sample_ratio or 0), float(value or 0), rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-12
        ):
            by_figure[name] = prompt_totals
    return by_figure


def with_interval(record: Record, lines: Sequence[Round], answers: Sequence[Round] = ()) -> Record:
    """The record with 95% intervals over prompts as uncertainty, where its lines give one.

    There is none if all prompts give nearly the same. On a wall clock prompts are resampled, and within each
    its rounds; what the record says of its rounds alone is no interval and is left out.
    """
    if not record.done:
        return record
    intervals = {name: interval(by_prompt) for name, by_prompt in totals(record, lines, answers).items()}
    ends = {name: pair for name, pair in intervals.items() if pair and not narrow(pair)}
    return replace(record, uncertainty={**recorded_uncertainty(record), **ends})


def recorded_uncertainty(record: Record) -> dict[str, Spread]:
    """The uncertainty that a record has itself, without the spread of a wall clock's rounds.

    A value with ends beside it (`NAME_low`, `NAME_high`) has these.
    """
    hidden_names, values = GENERATION_RATIOS if record.provenance.clock == "wall" else {}, record.values
    recorded = {name: spread for name, spread in record.uncertainty.items() if name not in hidden_names}
    pairs = {name: (values.get(f"{name}_low"), values.get(f"{name}_high")) for name in values}
    ends = {
        name: (float(low), float(high))
        for name, (low, high) in pairs.items()
        if isinstance(low, int | float) and isinstance(high, int | float)
    }
    return ends | recorded


def narrow(ends: tuple[float, float]) -> bool:
    """Whether nothing in an interval depends on the prompts."""
    return ends[1] - ends[0] <= NARROW_WIDTH * abs(ends[1])


def _parts(lines: Sequence[Round], answers: Sequence[Round]) -> dict[str, Totals]:
    if not lines:
        return {}
    names = lines[0].keys()
    if {"request", "emitted"} <= names:
        return _generation(_answer_sums(lines, answers), _by_round(lines))
    if {"met", "ttft"} <= names:
        return _ratios(_row_sums(lines, _request_row), SERVING_RATIOS)
    is_scored = not names.isdisjoint(("baseline_right", "baseline_nats"))
    return _ratios(_row_sums(lines, _example_row), ACCURACY_RATIOS) if is_scored else {}


def _round_sums(lines: Sequence[Round]) -> dict[str, Sums]:
    """The sums of each prompt over lines of its answers."""
    by_prompt: dict[str, Sums] = defaultdict(lambda: defaultdict(float, dict.fromkeys(COUNTED_SUMS, 0.0)))
    for line in lines:
        sums, numbers = by_prompt[str(line["request"])], cast("Mapping[str, float]", line)
        emitted, accepted = numbers.get("emitted") or 0.0, numbers.get("accepted") or 0.0
        sums["emitted"] += emitted
        sums["seconds"] += (numbers.get("end") or 0.0) - (numbers.get("start") or 0.0)
        if rows := numbers.get("rows"):
            sums["calls"] += 1
            sums["verified"] += emitted
            sums["accepted"] += accepted
            sums["rows"] += rows
            if drafted := numbers.get("drafted"):
                reach = numbers.get("reach") or 0.0
                sums["draftings"] += 1
                sums["drafted"] += drafted
                sums["right"] += 100 * accepted
                sums["errors"] += accepted < reach
                sums["useless"] += accepted >= reach
            if (possible := numbers.get("possible")) is not None:
                sums["possible"] += possible
    return by_prompt


def _answer_sums(lines: Sequence[Round], answers: Sequence[Round]) -> dict[str, Sums]:
    """The sums of each prompt over its lines, and those of its answer."""
    by_prompt = _round_sums(lines)
    for line in answers:
        sums = by_prompt[str(line["request"])]
        for name, value in line.items():
            if isinstance(value, (int, float)):
                sums[name] = float(value)
    for sums in by_prompt.values():
        sums[PROMPT_COUNT] = 1.0
        if {"prefill_joules", "decode_joules"} <= sums.keys():
            sums["answer_joules"] = sums["prefill_joules"] + sums["decode_joules"]
    return by_prompt


def _by_round(lines: Sequence[Round]) -> dict[str, list[Sums]]:
    """The sums of each prompt in each round of it, where a clock answered it several times."""
    lines_by_prompt: dict[str, list[list[Round]]] = defaultdict(list)
    for line in lines:
        answer_lines = lines_by_prompt[str(line["request"])]
        if not answer_lines or line.get("round") == 0:
            answer_lines.append([])
        answer_lines[-1].append(line)
    return {
        prompt: [_round_sums(round_lines)[prompt] for round_lines in answer_lines]
        for prompt, answer_lines in lines_by_prompt.items()
        if len(answer_lines) > 1
    }


def _generation(by_prompt: Mapping[str, Sums], by_answer: Mapping[str, Sequence[Sums]]) -> dict[str, Totals]:
    share = 1 / len(by_prompt)  # so that the sums below add up to one
    sums_by_prompt = {prompt: {**sums, "share": share} for prompt, sums in by_prompt.items()}
    pairs = {
        **GENERATION_RATIOS,
        **{name: (numerator, "share") for name, numerator in GENERATION_SUMS.items()},
    }
    figures = _ratios(sums_by_prompt, pairs)
    for prompt, rounds in by_answer.items():
        parts_of_rounds = [{**sums, "share": share / len(rounds)} for sums in rounds]
        for name, (numerator, denominator) in pairs.items():
            if name in figures and all({numerator, denominator} <= sums.keys() for sums in parts_of_rounds):
                round_totals = tuple((sums[numerator], sums[denominator]) for sums in parts_of_rounds)
                figures[name] = {**figures[name], prompt: figures[name][prompt]._replace(rounds=round_totals)}
    return figures


def _row_sums(lines: Sequence[Round], row_name: Callable[[Round, int], str]) -> dict[str, Sums]:
    """The sums of each dataset row: of its example, or of all requests that ask it."""
    sums_by_row: dict[str, Sums] = defaultdict(lambda: defaultdict(float))
    for number, line in enumerate(lines):
        values = {name: float(value) for name, value in line.items() if isinstance(value, (int, float))}
        values |= {name: 100.0 * values[name] for name in PERCENT_FIELDS if name in values}
        values[PROMPT_COUNT] = 1.0
        if {"right", "baseline_right"} <= values.keys():
            values["gained"] = values["right"] - values["baseline_right"]
        if {"last_right", "baseline_last"} <= values.keys():
            values["last_gained"] = values["last_right"] - values["baseline_last"]
        if {"nats", "baseline_nats"} <= values.keys():
            values["nats_more"] = values["nats"] - values["baseline_nats"]
        if "switch" in values:
            values["switched"] = float(values["switch"] > 0)
        if {"right", "met"} <= values.keys():
            values["in_time"] = values["right"] * bool(values["met"])
        if values.get("full_ttft") and "deciding" in values:
            values["deciding_of_full"] = values["deciding"] / values["full_ttft"]
        sums = sums_by_row[row_name(line, number)]
        for name, value in values.items():
            sums[name] += value
    return sums_by_row


def _example_row(line: Round, number: int) -> str:
    return str(line.get("id") or number)


def _request_row(line: Round, number: int) -> str:
    """A request is called after its application, the row that it asks, and its number."""
    return _example_row(line, number).rpartition("/")[0] or str(number)


def _ratios(by_prompt: Mapping[str, Sums], pairs: Mapping[str, tuple[str, str]]) -> dict[str, Totals]:
    """The ratios whose two sums are known of every prompt."""
    common_names = set.intersection(*({*sums} for sums in by_prompt.values()))
    return {
        name: {prompt: Total(sums[numerator], sums[denominator]) for prompt, sums in by_prompt.items()}
        for name, (numerator, denominator) in pairs.items()
        if {numerator, denominator} <= common_names
    }
