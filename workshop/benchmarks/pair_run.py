"""Answers of methods with a real model pair on this machine, one prompt at a time, for `pairs.py`.

Owns how the arms of a pair are opened together, what is measured of an answer and its stored form. Must not
know in which order prompts are answered, nor how answers are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch

from repro.core.errors import InputError
from repro.device.emulated import Device
from repro.device.trace import Trace
from repro.experiments.plan import cell_config
from repro.methods.base import Generation, Serving
from repro.methods.speculative.speculative import begin
from repro.models.runtime.model import Model
from repro.models.runtime.session import Session
from repro.scenarios.generation import figures
from repro.scenarios.generation.scenario import GenerationScenario, opened_sessions, start

NULL = "#null"
"""Ends the name of an arm that repeats another one, to see what noise does."""
WARMING = 4
"""Tokens of an answer that warms a method up whose weights are in memory."""


@dataclass(frozen=True)
class Unit:
    """What is asked of an arm: one answer, measured in one go.

    Attributes:
        part: the pair and where its target lies, see `pairs.PARTS`.
        arm: the method with its settings, `name:setting=value:...`.
        dataset: its name.
        prompt: number of the prompt, from 0.
        round: number of the round, from 0.
        asked: tokens asked for.
    """

    part: str
    arm: str
    dataset: str
    prompt: int
    round: int
    asked: int


@dataclass(frozen=True)
class Answer:
    """A measured answer.

    Attributes:
        unit: what was asked.
        tokens: ids of the answer.
        prefill_s: seconds until all models have read the prompt; decoding starts then.
        decode_s: seconds from there to the last token.
        passes: verifications while decoding.
        drafted: draft tokens in them.
        target_s: seconds of the target's passes while decoding.
        draft_s: of the draft's; `hidden_s` of these ran during passes of the target.
        hidden_s: see `draft_s`.
        idle_s: seconds of decoding in which neither the processor nor the disk worked.
        read_bytes: bytes read from the disk while decoding.
        held_bytes: peak bytes that the arm's models held, by the device's own account.
        threads: of torch.
        before: answers that the arm gave before in the same process.
        others: cores that others kept busy meanwhile.
        notes: remarks.
    """

    unit: Unit
    tokens: Sequence[int]
    prefill_s: float
    decode_s: float
    passes: int
    drafted: int
    target_s: float
    draft_s: float
    hidden_s: float
    idle_s: float
    read_bytes: float
    held_bytes: float
    threads: int
    before: int
    others: float = 0.0
    notes: Sequence[str] = ()

    @property
    def decoded(self) -> int:
        """Tokens after the first one, which the prompt's pass gives."""
        return len(self.tokens) - 1

    def fields(self) -> dict[str, Any]:
        """What is stored: figures to six digits."""
        short = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in vars(self).items()}
        return short | {"unit": list(vars(self.unit).values())}

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Answer:
        """An answer from what is stored of it."""
        return cls(**{**fields, "unit": Unit(*fields["unit"])})


class PairCell(GenerationScenario):
    """A cell whose models are loaded once for all arms of this process."""

    shared: ClassVar[dict[str, Model]] = {}

    @cached_property
    def target(self) -> Model:
        """See `GenerationScenario`."""
        return self._shared("target", lambda: super(PairCell, self).target)

    def model(self, role: str) -> Model:
        """See `GenerationScenario`."""
        return self._shared(role, lambda: super(PairCell, self).model(role))

    def _shared(self, role: str, opened: Any) -> Model:
        key = f"{role} {self.models[role]}"
        if key not in self.shared:
            self.shared[key] = opened()
        return self.shared[key]


def cell_of(
    arm: str, dataset: str, overrides: Sequence[str], machine: Mapping[str, Any] | None = None
) -> tuple[PairCell, list[str]]:
    """The cell of an arm, and remarks; without pruning if the target has no early-exit predictor.

    It runs on this machine, or on the `device` with the `engine` of an emulated one.
    """
    method, *settings = arm.removesuffix(NULL).split(":")
    chosen = [f"method={method}", f"dataset={dataset}", "device=local_cpu", *overrides]
    chosen += [f"method.{setting}" for setting in settings]
    cell = _composed(chosen, machine)
    beside = [place.beside for place in cell.places.values() if place.beside]
    if beside and "pruning=" not in arm:
        try:
            beside[0](cell.target)
        except InputError as lacking:
            return _composed([*chosen, "method.pruning=off"], machine), [f"without pruning: {lacking}"]
    return cell, []


def _composed(overrides: Sequence[str], machine: Mapping[str, Any] | None) -> PairCell:
    return PairCell(cell_config(*overrides) | dict(machine or {}))


class OpenArm:
    """An arm whose models are open on this machine, and its method prepared."""

    def __init__(self, arm: str, dataset: str, overrides: Sequence[str], opened: ExitStack) -> None:
        """Open it, warm it up with the first prompt, and prepare its method."""
        self.cell, self.notes = cell_of(arm, dataset, overrides)
        self.cell.check()
        self.device: Device = self.cell.open_device()
        opened.callback(self.device.close)
        self.sessions: dict[str, Session] = opened.enter_context(
            opened_sessions(self.cell, self.device, None)
        )
        self.before = 0
        first = self.cell.requests[0]
        start(self.sessions, first)
        target, *drafts = (self.sessions[role] for role in sorted(self.sessions, key="target".__ne__))
        self.device.play(begin(first, self.device, target, *drafts))
        self.serving: Serving = self.device.play(self.cell.method.prepare(self.device, self.sessions))
        if all(place.resident == 1.0 for place in self.cell.places.values()):
            self._serve(replace(first, max_tokens=WARMING))

    def _serve(self, request: Any) -> Generation:
        start(self.sessions, request)
        return self.device.play(self.serving.serve(request, self.device, self.sessions))

    def answer(self, unit: Unit) -> Answer:
        """Answer one prompt."""
        generation = self._serve(replace(self.cell.requests[unit.prompt], max_tokens=unit.asked))
        trace = self.device.trace
        (costs,) = figures.by_answer([generation], self.sessions, trace)
        timed = figures.timing([generation], trace)
        self.before += 1
        rounds = generation.rounds
        return Answer(
            unit=unit,
            tokens=generation.tokens,
            prefill_s=generation.prefilled - generation.arrived,
            decode_s=_number(timed["decode_seconds"]),
            passes=sum(bool(each.rows) for each in rounds),
            drafted=sum(each.drafted for each in rounds),
            target_s=_number(costs["target_seconds"]),
            draft_s=_number(costs["draft_seconds"]),
            hidden_s=_number(costs["hidden_seconds"]),
            idle_s=idle(trace, generation) if rounds else 0.0,
            read_bytes=_number(timed["flash_bytes_per_token"]) * _number(timed["decode_tokens"]),
            held_bytes=float(self.device.memory.peak),
            threads=torch.get_num_threads(),
            before=self.before - 1,
            notes=self.notes,
        )


def opened_arms(
    arms: Sequence[str], dataset: str, overrides: Sequence[str], opened: ExitStack
) -> dict[str, OpenArm]:
    """Open arms one after the other, with one copy of all weights; those without a draft come first.

    A head that drafts has its target's passes record hidden states, of the arms that are opened after it.
    """
    drafts = {arm: "draft" in cell_of(arm, dataset, overrides)[0].places for arm in arms}
    return {arm: OpenArm(arm, dataset, overrides, opened) for arm in sorted(arms, key=drafts.__getitem__)}


def _number(value: Any) -> float:
    return float(value or 0.0)


def idle(trace: Trace, generation: Generation) -> float:
    """Seconds of decoding in which no resource worked: an upper bound of the method's own Python time."""
    start, end = generation.prefilled, generation.ended
    return end - start - covered([(span.start, span.end) for span in trace.within(start, end)], start, end)


def covered(stretches: Sequence[tuple[float, float]], start: float, end: float) -> float:
    """Seconds of a window covered by time intervals, which may overlap each other and the window's ends."""
    total, reached = 0.0, start
    for left, right in sorted(stretches):
        total += max(0.0, min(right, end) - max(left, reached))
        reached = max(reached, right)
    return total
