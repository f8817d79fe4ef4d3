"""Figures of serving a trace: latencies, level switches, SLO attainment and accuracy.

Owns these figures and one line per request. Must not know how requests were decided or costed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean
from typing import NamedTuple

from repro.data.traces import Arrival
from repro.methods.serving.deciders import ServiceRequest
from repro.methods.serving.service_profile import Spent
from repro.methods.serving.slo import Decision, RequestCosts
from repro.records.record import Round, Scalar


class ServedRequest(NamedTuple):
    """One request, as it was served.

    Attributes:
        arrival: its app, example and arrival time.
        request: its prompt and SLO.
        decision: levels of prompt and model.
        fell_back: True if the decider's own decision would have violated the SLO.
        deciding: cost of deciding and scoring.
        switch: cost of switching to the level; zero if the model was on it already.
        costs: total cost of the request.
        first: its cost to the first token.
        full: the full model's cost for it.
        met: True if the SLO was met.
    """

    arrival: Arrival
    request: ServiceRequest
    decision: Decision
    fell_back: bool
    deciding: Spent
    switch: Spent
    costs: RequestCosts
    first: RequestCosts
    full: RequestCosts
    met: bool

    @property
    def read(self) -> int:
        """Number of prompt tokens after shortening."""
        return self.request.read(self.decision.prompt)


def billed(served: Sequence[ServedRequest]) -> dict[str, Scalar]:
    """Latency, SLO and switching figures over all requests.

    TPOTs are over answers of two tokens or more, `None` without any. Speedups and most shares are ratios of
    sums, so that long requests weigh more. `switch_seconds` is the
    mean over switches that took time, `switch_seconds_max` the longest.
    """
    switches = [one.switch.seconds for one in served if one.switch.seconds]
    first = sum(one.costs.ttft for one in served)
    own = [one.costs.tpot for one in served if one.costs.tpot is not None]
    full = [one.full.tpot for one in served if one.full.tpot is not None]
    energies = [one.costs.energy for one in served if one.costs.energy is not None]
    return {
        "requests": len(served),
        "met": 100.0 * mean(one.met for one in served),
        "unmet": sum(not one.met for one in served),
        "fell_back": 100.0 * mean(one.fell_back for one in served),
        "ttft": mean(one.costs.ttft for one in served),
        "tpot": mean(own) if own else None,
        "time": mean(one.costs.time for one in served),
        "energy": mean(energies) if len(energies) == len(served) else None,
        **_as_generated(served),
        "full_ttft": mean(one.full.ttft for one in served),
        "full_tpot": mean(full) if full else None,
        "ttft_speedup": sum(one.full.ttft for one in served) / first,
        "tpot_speedup": sum(full) / sum(own) if own else None,
        "prompt_level": mean(one.decision.prompt for one in served),
        "model_level": mean(one.decision.model for one in served),
        "prompt_tokens": mean(len(one.request.prompt) for one in served),
        "read_share": sum(one.read for one in served) / sum(len(one.request.prompt) for one in served),
        "switches": len(switches),
        "switch_seconds": mean(switches) if switches else 0.0,
        "switch_seconds_max": max(switches, default=0.0),
        "switch_share": sum(switches) / first,
        "deciding_seconds": mean(one.deciding.seconds for one in served),
        "deciding_share": sum(one.deciding.seconds for one in served) / first,
        "deciding_share_of_full": mean(one.deciding.seconds / one.full.ttft for one in served),
        "decisions": len({one.decision for one in served}),
    }


def _as_generated(served: Sequence[ServedRequest]) -> dict[str, Scalar]:
    """The figures of generation that requests have too, under its names, for tables that have both."""
    tokens = sum(one.request.answer - 1 for one in served)
    seconds = sum(one.costs.time - one.costs.ttft for one in served)
    read = [one.first.energy for one in served if one.first.energy is not None]
    spent = [one.costs.energy for one in served if one.costs.energy is not None]
    known = len(read) == len(spent) == len(served)
    return {
        "prompts": len(served),
        "decode_tokens": tokens,
        "decode_seconds": seconds,
        "decode_tokens_per_s": tokens / seconds if tokens else None,
        "prefill_joules": sum(read) if known else None,
        "joules_per_token": (sum(spent) - sum(read)) / tokens if known and tokens else None,
    }


def answered(
    served: Sequence[ServedRequest], right: Sequence[bool], plain: Sequence[bool]
) -> dict[str, Scalar]:
    """Accuracy, compared with the full model's on the same examples.

    `accuracy` is over all requests; `accuracy_in_time` counts requests that missed their SLO as wrong.
    """
    from repro.metrics.base import score  # late: the metrics' library takes seconds to import

    correct = [int(one) for one in right]
    values: dict[str, Scalar] = {**score(["accuracy"], {"correct": correct})}
    values["full_accuracy"] = 100.0 * mean(plain)
    values["accuracy_in_time"] = 100.0 * mean(a and b.met for a, b in zip(right, served, strict=True))
    pairs = {"values": [100.0 * one for one in right], "baseline_values": [100.0 * one for one in plain]}
    values |= score(["paired_difference"], pairs)
    apps = dict.fromkeys(one.arrival.app.name for one in served)
    if len(apps) > 1:
        for app in apps:
            of_app = [a for a, b in zip(right, served, strict=True) if b.arrival.app.name == app]
            values[f"accuracy_{app}"] = 100.0 * mean(of_app)
    return values


def rounds(served: Sequence[ServedRequest], right: Sequence[bool] | None) -> Iterator[Round]:
    """One mapping per request."""
    for number, one in enumerate(served):
        yield {
            "id": one.request.id,
            "seconds": one.arrival.seconds,
            "prompt_level": one.decision.prompt,
            "model_level": one.decision.model,
            "prompt_tokens": len(one.request.prompt),
            "read": one.read,
            "ttft": one.costs.ttft,
            "tpot": one.costs.tpot,
            "full_ttft": one.full.ttft,
            "full_tpot": one.full.tpot,
            "deciding": one.deciding.seconds,
            "switch": one.switch.seconds,
            "met": int(one.met),
            "fell_back": int(one.fell_back),
            "right": None if right is None else int(right[number]),
        }
