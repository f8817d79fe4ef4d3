"""Figures of a record, computed from answers and a trace. Must not know how these were produced.

Rates are ratios of totals on the device's clock. Decode time excludes prefill, model load and warm-up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from math import fsum
from statistics import fmean

from repro.device.op import FLASH, PROCESSORS
from repro.device.trace import Trace
from repro.methods.base import Generation
from repro.models.runtime.session import Session
from repro.records.record import Scalar


def decode_windows(generations: Sequence[Generation]) -> list[tuple[float, float]]:
    """(start, end) of each answer's decoding, up to its last token; one-token answers have none."""
    return [(g.prefilled, g.ended) for g in generations if g.rounds]


def timing(generations: Sequence[Generation], trace: Trace) -> dict[str, Scalar]:
    """Latency, throughput and energy.

    Returns:
        decode_tokens: tokens after each answer's first.
        decode_seconds: total decode time.
        decode_tokens_per_s, time_per_token (seconds; TPOT), ttft (mean seconds).
        prefill_seconds: total time of all models' prefills; with decode_seconds, all of the answers' latency.
        latency: mean seconds from a request to its last token.
        prefill_tokens_per_s: prompt tokens over the time to the first token.
        prefill_joules: energy of all models' prefills; `None` if power is not known.
        prefill_bubbles: share of the time to the first token in which the busiest processor idles.
        decode_joules, joules_per_token: all resources, idle power included; `None` if power is not known.
        flash_bytes_per_token: bytes read from flash while decoding.
        flash_busy: share of decode time in which flash was read.
    """
    windows = decode_windows(generations)
    token_count = sum(len(g.tokens) - 1 for g in generations)
    seconds = sum(end - start for start, end in windows)
    joules = [trace.joules(*window) for window in windows]
    decode_joules = None if None in joules else sum(j for j in joules if j is not None)
    read_bytes = sum(s.bytes for w in windows for s in trace.within(*w, FLASH))
    prefill_windows = [(g.arrived, g.first) for g in generations]
    prefill_seconds = sum(end - start for start, end in prefill_windows)
    prompt_tokens = sum(len(g.request.prompt) for g in generations)
    prefill_joules = [trace.joules(g.arrived, g.prefilled) for g in generations]
    busiest_seconds = max(sum(trace.busy(on, *window) for window in prefill_windows) for on in PROCESSORS)
    return {
        "decode_tokens": token_count,
        "decode_seconds": seconds,
        "decode_tokens_per_s": token_count / seconds if seconds else None,
        "time_per_token": seconds / token_count if token_count else None,
        "ttft": fmean(g.first - g.arrived for g in generations),
        "latency": fmean(g.ended - g.arrived for g in generations),
        "prefill_tokens_per_s": prompt_tokens / prefill_seconds if prefill_seconds else None,
        "prefill_joules": None if None in prefill_joules else sum(j for j in prefill_joules if j is not None),
        "prefill_bubbles": 1 - busiest_seconds / prefill_seconds if prefill_seconds else None,
        "prefill_seconds": sum(g.prefilled - g.arrived for g in generations),
        "decode_joules": decode_joules,
        "joules_per_token": decode_joules / token_count
        if token_count and decode_joules is not None
        else None,
        "flash_bytes_per_token": read_bytes / token_count if token_count else None,
        "flash_busy": sum(trace.busy(FLASH, *w) for w in windows) / seconds if seconds else None,
    }


def by_answer(
    generations: Sequence[Generation], sessions: Mapping[str, Session], trace: Trace
) -> list[dict[str, Scalar]]:
    """What each answer cost, of which `timing`, `passes` and `projecting` have totals, means and ratios.

    Returns:
        ttft, latency: seconds; prefill_joules, decode_joules: `None` if power is not known; and the sums of
        `passes` and `projecting` over the answer's decoding (see `_pass_sums` and `_projection_sums`).
    """
    answers: list[dict[str, Scalar]] = []
    for answer in generations:
        windows = decode_windows([answer])
        answers.append(
            {
                "ttft": answer.first - answer.arrived,
                "latency": answer.ended - answer.arrived,
                "prefill_joules": trace.joules(answer.arrived, answer.prefilled),
                "decode_joules": trace.joules(answer.prefilled, answer.ended) if answer.rounds else 0.0,
                **_pass_sums(windows, sessions),
                **_projection_sums([answer], trace),
            }
        )
    return answers


def calls(generations: Sequence[Generation], has_verifier: bool = True) -> dict[str, Scalar]:
    """Count the target's verifications; zero for methods without a target (`verified` false).

    Returns:
        prompts: number of answers.
        target_calls: verifications over all answers, prefill excluded.
        verification_width: tokens per verification, the root included.
    """
    rounds = [r for g in generations for r in g.rounds if has_verifier and r.rows]
    mean_width = sum(r.rows for r in rounds) / len(rounds) if rounds else None
    return {"prompts": len(generations), "target_calls": len(rounds), "verification_width": mean_width}


def drafting(generations: Sequence[Generation]) -> dict[str, Scalar]:
    """Figures about drafting; empty if nothing was drafted.

    Returns:
        drafted_per_call: draft tokens per verification.
        error_rate: share of verifications that found an error in the best-matching branch.
        calls_per_error: verifications per error found (EdgeLLM sec. IV-G's "prolonged wait").
        drafted_per_error: draft tokens per error found.
        useless_calls: verifications that found no error, over all answers.
        retention: accepted draft tokens over those that the unpruned trees would have had accepted; absent
            if nothing is pruned.
    """
    rounds = [r for g in generations for r in g.rounds if r.rows and r.drafted]
    if not rounds:
        return {}
    error_count = sum(r.accepted < r.reach for r in rounds)
    drafted_count = sum(r.drafted for r in rounds)
    possible_count = sum(r.possible for r in rounds if r.possible is not None)
    values: dict[str, Scalar] = {
        "drafted_per_call": drafted_count / len(rounds),
        "error_rate": error_count / len(rounds),
        "calls_per_error": len(rounds) / error_count if error_count else None,
        "drafted_per_error": drafted_count / error_count if error_count else None,
        "useless_calls": len(rounds) - error_count,
    }
    if possible_count:
        values["retention"] = sum(r.accepted for r in rounds) / possible_count
    return values


class _Stretches:
    """Stretches of time that do not overlap, in any order; looked up by bisection."""

    def __init__(self, stretches: Sequence[tuple[float, float]]) -> None:
        self._stretches = sorted(stretches)
        self._starts = [start for start, _ in self._stretches]
        self._ends = [end for _, end in self._stretches]

    def at(self, time: float) -> bool:
        """Whether a moment is in one of them; their ends are not."""
        i = bisect_right(self._starts, time) - 1
        return i >= 0 and time < self._ends[i]

    def overlaps(self, start: float, end: float) -> list[float]:
        """Seconds of a stretch that each of those near it covers."""
        stretches = self._stretches[bisect_right(self._ends, start) : bisect_left(self._starts, end)]
        return [max(0.0, min(end, b) - max(start, a)) for a, b in stretches]


def passes(generations: Sequence[Generation], sessions: Mapping[str, Session]) -> dict[str, Scalar]:
    """Mean seconds of the forward passes while decoding; `None` for roles without passes.

    Returns:
        target_pass, target_loading, target_computing: a pass of the target, its time waiting for reads, and
            the rest.
        draft_pass: a draft pass that began outside passes of the target.
        provisional_pass: a draft pass that began during a pass of the target.
        draft_seconds: total time of draft passes.
        draft_hidden: share of the draft time that overlaps passes of the target.
        rows_kept: share of the target's tokens that ran through its last layers; the others were pruned.
    """
    sums = _pass_sums(decode_windows(generations), sessions)
    target_passes = sums["target_passes"]
    return {
        "target_pass": _over(sums["target_seconds"], target_passes),
        "target_loading": _over(sums["loading_seconds"], target_passes),
        "target_computing": _over(sums["computing_seconds"], target_passes),
        "draft_pass": _over(sums["alone_seconds"], sums["alone_passes"]),
        "provisional_pass": _over(sums["beside_seconds"], sums["beside_passes"]),
        "draft_seconds": sums["draft_seconds"],
        "draft_hidden": _over(sums["hidden_seconds"], sums["draft_seconds"]),
        "rows_kept": _over(sums["kept_rows"], sums["target_rows"]),
    }


def _pass_sums(windows: Sequence[tuple[float, float]], sessions: Mapping[str, Session]) -> dict[str, float]:
    """Passes that began in these stretches of decoding: how many, their seconds, and the target's rows.

    Draft passes are those of all other roles; they began alone, or beside a pass of the target.
    """
    decode = _Stretches(windows)
    passes = {role: [p for p in session.passes if decode.at(p.start)] for role, session in sessions.items()}
    target_passes = passes.pop("target", [])
    verify_stretches = _Stretches([(t.start, t.end) for t in target_passes])
    drafts = [p for role_passes in passes.values() for p in role_passes]
    beside_passes = [p for p in drafts if verify_stretches.at(p.start)]
    alone_passes = [p for p in drafts if not verify_stretches.at(p.start)]
    return {
        "target_passes": len(target_passes),
        "target_seconds": fsum(p.end - p.start for p in target_passes),
        "loading_seconds": fsum(p.loading for p in target_passes),
        "computing_seconds": fsum(p.end - p.start - p.loading for p in target_passes),
        "target_rows": sum(p.rows for p in target_passes),
        "kept_rows": sum(p.last_rows for p in target_passes),
        "alone_passes": len(alone_passes),
        "alone_seconds": fsum(p.end - p.start for p in alone_passes),
        "beside_passes": len(beside_passes),
        "beside_seconds": fsum(p.end - p.start for p in beside_passes),
        "draft_seconds": sum(p.end - p.start for p in drafts),
        "hidden_seconds": sum(part for p in drafts for part in verify_stretches.overlaps(p.start, p.end)),
    }


def projecting(generations: Sequence[Generation], trace: Trace) -> dict[str, Scalar]:
    """Mean seconds of the target's output projection per verification; empty without verifications.

    Returns:
        target_projection: time for all tokens of the tree.
        target_wasted: the part spent on tokens outside the accepted path (LEVER Table 2).
    """
    round_count = sum(bool(r.rows) for g in generations for r in g.rounds)
    sums = _projection_sums(generations, trace)
    names = {"target_projection": "projecting_seconds", "target_wasted": "wasted_seconds"}
    return {name: sums[sum_] / round_count for name, sum_ in names.items()} if round_count else {}


def _projection_sums(generations: Sequence[Generation], trace: Trace) -> dict[str, float]:
    """Seconds of the target's output projections while decoding, and those spent off the accepted path."""
    projecting, wasted = [], []
    for r in (r for g in generations for r in g.rounds if r.rows):
        heads = [s for s in trace.within(r.start, r.end) if s.kind == "head" and s.name == "target head"]
        row_count, seconds = sum(s.rows for s in heads), sum(s.seconds for s in heads)
        projecting.append(seconds)
        wasted.append(seconds * max(0.0, 1 - (r.accepted + 1) / row_count) if row_count else 0.0)
    return {"projecting_seconds": fsum(projecting), "wasted_seconds": fsum(wasted)}


def _over(total: float, count: float) -> float | None:
    return total / count if count else None


def outcome(generations: Sequence[Generation]) -> dict[str, list[list[int]]]:
    """The inputs of metrics: token ids, and drafted, accepted and emitted tokens per verification."""
    return {
        "predictions": [g.tokens for g in generations],
        "drafted": [[r.drafted for r in g.rounds if r.rows] for g in generations],
        "accepted": [[r.accepted for r in g.rounds if r.rows] for g in generations],
        "emitted": [[r.emitted for r in g.rounds if r.rows] for g in generations],
    }


def round_rows(generations: Sequence[Generation]) -> list[dict[str, Scalar]]:
    """One mapping per round, stored with the record and for dashboards."""
    return [
        {"request": g.request.id, "round": i, **r._asdict()}
        for g in generations
        for i, r in enumerate(g.rounds)
    ]
