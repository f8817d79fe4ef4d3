"""A run of one method on one dataset's prompts, measured for `lever.py` in a separate process.

Must not know which methods are compared, nor how several runs are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from real_pair import Answered, answered, covered, drafting, local_cell, working
from repro.core.errors import InputError
from repro.device.local import LocalDevice
from repro.device.op import FLASH
from repro.models.forward.exactness import divergence
from repro.models.runtime.session import Session
from repro.records.provenance import peak_resident_bytes
from repro.scenarios.generation.scenario import GenerationScenario

BASE = "flash_ar"
"""Baseline whose tokens every lossless answer must equal."""


class Pair(NamedTuple):
    """Files of conf/model, and the budget in GB, which is less than both models take."""

    target: str
    draft: str
    budget: float


PAIRS = {
    "qwen": Pair("qwen2_5_coder_1_5b", "qwen2_5_coder_0_5b", 3.0),
    "smollm2": Pair("smollm2_135m", "smollm2_135m_eagle3", 0.5),
}


def pair_of(chosen: argparse.Namespace) -> Pair:
    """The models and their budget."""
    pair = PAIRS[chosen.pair]
    return Pair(pair.target, chosen.draft or pair.draft, chosen.budget or pair.budget)


@dataclass(frozen=True)
class Answer:
    """Answer to one prompt: tokens, seconds after the first token, verifications, verified draft tokens."""

    id: str
    tokens: list[int]
    seconds: float
    cycles: int
    drafted: int

    @property
    def pace(self) -> float:
        """Seconds per token."""
        return self.seconds / (len(self.tokens) - 1)


@dataclass(frozen=True)
class Time:
    """Seconds of the decode spans by activity; `None` without a draft or a set disk pace.

    Attributes:
        resting: neither a processor nor the disk worked.
        tree: between the draft's passes, before a verification.
        ops: between the processor's ops, before a verification.
        verifying: in verifications.
        floor: time of all disk reads at the set pace.
    """

    resting: float
    tree: float | None
    ops: float | None
    verifying: float
    floor: float | None


@dataclass(frozen=True)
class Run:
    """One method's answers to one dataset's prompts in one round, with its memory in GB."""

    arm: str
    dataset: str
    round: int
    lossless: bool
    answers: list[Answer]
    time: Time
    resident: float
    budgeted: float
    notes: list[str]

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Run:
        """A run from its JSON object."""
        answers = [Answer(**answer) for answer in given["answers"]]
        return cls(**{**given, "answers": answers, "time": Time(**given["time"])})


def measured(arm: str, dataset: str, number: int, chosen: argparse.Namespace) -> Run:
    """One run of a method over one dataset's prompts, after a warm-up."""
    cell, notes = opened(arm, dataset, chosen)
    done = answered(cell)
    answers = [
        Answer(
            g.request.id,
            g.tokens,
            g.ended - g.rounds[0].start if g.rounds else 0.0,
            len(g.rounds),
            sum(r.drafted for r in g.rounds),
        )
        for g in done.generations
    ]
    return Run(
        arm=arm,
        dataset=dataset,
        round=number,
        lossless=cell.method.lossless,
        answers=answers,
        time=time_of(done),
        resident=peak_resident_bytes() / 1e9,
        budgeted=done.device.memory.peak / 1e9,
        notes=[*notes, *noted(done)],
    )


def opened(arm: str, dataset: str, chosen: argparse.Namespace) -> tuple[GenerationScenario, list[str]]:
    """The cell of a method with its settings; without pruning if the target has no early-exit predictor."""
    method, *own = arm.split(":")
    settings = [f"method.{setting}" for setting in own]
    ask = method, dataset, pair_of(chosen)[:2], pair_of(chosen).budget, chosen
    cell = local_cell(*ask, *settings)
    if any(place.early_exit for place in cell.places.values()) and "pruning=" not in arm:
        try:
            _ = cell.target.predictor_folder
        except InputError as lacking:
            return local_cell(*ask, *settings, "method.pruning=off"), [f"without pruning: {lacking}"]
    return cell, []


def time_of(done: Answered) -> Time:
    """Time of the decode spans by activity."""
    trace, draft, target = done.device.trace, done.sessions.get("draft"), done.sessions["target"]
    tree, ops = _between(done, draft, target) if draft else (None, None)
    verified = [p for p in target.passes if any(a <= p.start < b for a, b in done.windows)]
    read = sum(span.bytes for window in done.windows for span in trace.within(*window, FLASH))
    assert isinstance(done.device, LocalDevice)
    pace = done.device.machine.pace
    return Time(
        resting=done.resting,
        tree=tree,
        ops=ops,
        verifying=sum(p.end - p.start for p in verified),
        floor=read / pace if pace else None,
    )


def _between(done: Answered, draft: Session, target: Session) -> tuple[float, float]:
    """Seconds before verifications between the draft's passes, and between ops on processors."""
    stretches = list(drafting(done.generations, target.passes))
    passes = [(p.start, p.end) for p in draft.passes]
    tree = sum(end - start - covered(passes, start, end) for start, end in stretches)
    ops = sum(end - start - working(done.device.trace, start, end, reading=False) for start, end in stretches)
    return tree, ops


def noted(done: Answered) -> Iterator[str]:
    """Remarks on the run."""
    for lacking, served in done.device.substituted.items():
        yield f"{lacking} ops ran on {served}"
    first = done.generations[0].arrived
    if any(p.name == "profile" and p.end <= first for p in done.device.trace.phases):
        yield "verifications were measured before the first request"


def judged(
    dataset: str, parted: Sequence[tuple[str, list[int], list[int]]], chosen: argparse.Namespace
) -> list[Any]:
    """Where answers diverge from the baseline's: the token, the logit difference, whether that is a tie."""
    cell, _ = opened(BASE, dataset, chosen)
    network, prompts = cell.target.network(), {r.id: r.prompt for r in cell.requests}
    dtype = cell.target.config.dtype
    return [divergence(prompts[name], ours, own, network, dtype) for name, ours, own in parted]
