"""The whole answer, prompts of all models included: when it ends and what it takes, worked out on paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from repro.device.cost import Curve, Machine
from repro.device.emulated import EmulatedDevice
from repro.device.op import CPU, GPU, NPU
from repro.methods.base import Generation, Method, Request
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.methods.speculative.chain_sd import ChainSD
from repro.models.runtime.engine import Engine
from repro.models.runtime.session import Session
from repro.records.record import Scalar, whole_answer
from repro.scenarios.generation import figures
from tiny_limits import DRAFT, PROMPT, RIGHT, TARGET, machine

IDLE, BUSY = 2.0, 3.0
ALONE = 26.0
"""Seconds of the target's prompt of 5 tokens at a second a row: embedding, four layers, one row projected."""


def on(**row_seconds: float) -> Machine:
    """A machine whose processors take so many seconds for each row of an op, and nothing else."""
    each = {
        name: {"start": {"int8": Curve(((1.0, seconds),))}, "start_exponent": 1.0, "watts": BUSY}
        for name, seconds in row_seconds.items()
    }
    return replace(machine(idle_watts=IDLE, processors=each), early_drafts=True)


def served(method: Method, machine: Machine, tokens: int) -> tuple[Generation, EmulatedDevice]:
    """The answer to a prompt of 5 tokens, and the device with its trace."""
    device, costs = EmulatedDevice(machine), {"target": TARGET, "draft": DRAFT}
    sessions = {
        role: Session(Engine(role, device, costs[role], RIGHT, place))
        for role, place in method.places().items()
    }
    request = Request("paper/0", tuple(range(PROMPT)), tokens)
    for session in sessions.values():
        session.start(request.prefix)
    return device.play(method.serve(request, device, sessions)), device


METHODS = (ChainSD(length=2, resident=1.0), EdgeLLM(resident=1.0, limit=2, ahead=1))


@pytest.mark.parametrize("method", METHODS, ids=("chain_sd", "edgellm"))
@pytest.mark.parametrize(
    ("machine", "place", "ready"),
    [
        # the draft's prompt: 5 rows embedded, 5 through its layer, one projected; then the first token, 3
        (on(cpu=1.0, gpu=0.5, npu=0.1), NPU, ALONE + 3),
        (on(cpu=1.0, gpu=3.0), GPU, 33 + 3.0),
        (on(cpu=1.0, gpu=3.5), CPU, ALONE + 13),  # 38.5 s there, 37 behind the target
        (on(cpu=1.0), CPU, ALONE + 13),
    ],
)
def test_a_draft_reads_where_it_is_done_first_and_beside_its_target(
    method: Method, machine: Machine, place: str, ready: float
) -> None:
    answer, device = served(method, machine, tokens=4)
    assert answer.first == pytest.approx(ALONE)
    assert answer.prefilled == pytest.approx(ready)
    assert next(s.on for s in device.trace if s.name.startswith("draft layer")) == place
    in_turn, _ = served(method, replace(machine, early_drafts=False), tokens=4)
    assert in_turn.prefilled == pytest.approx(ALONE + 13)
    assert in_turn.tokens == answer.tokens


def test_an_answer_of_one_token_waits_for_no_draft() -> None:
    answer, _ = served(METHODS[0], on(cpu=1.0, gpu=100.0, npu=100.0), tokens=1)
    assert (answer.first, answer.prefilled, answer.ended) == (ALONE, ALONE, ALONE)


@pytest.mark.parametrize("method", METHODS, ids=("chain_sd", "edgellm"))
def test_the_whole_answer_is_all_its_phases_and_the_integral_of_power(method: Method) -> None:
    answer, device = served(method, on(cpu=1.0, gpu=0.5, npu=0.1), tokens=4)
    values: Mapping[str, Scalar] = {"prompts": 1, **figures.timing([answer], device.trace)}
    whole = whole_answer(values)
    phases = {phase.name: phase.end - phase.start for phase in device.trace.phases}
    assert whole["answer_seconds"] == pytest.approx(phases["prefill"] + phases["decode"])
    edges = sorted(
        {0.0, answer.ended, *(t for s in device.trace for t in (s.start, s.end) if t < answer.ended)}
    )
    joules = 0.0
    for start, end in pairwise(edges):
        running = sum(s.start <= (start + end) / 2 < s.end for s in device.trace)
        joules += (IDLE + BUSY * running) * (end - start)
    assert whole["answer_joules"] == pytest.approx(joules)


def test_a_service_tells_its_mean_seconds_and_joules() -> None:
    """A request of 3 s and 10 J: its `prompts` and `decode_*` are those of generation, `energy` is a mean."""
    assert whole_answer({"requests": 2, "prompts": 2, "time": 3.0, "energy": 10.0}) == {
        "answer_seconds": 3.0,
        "answer_joules": 10.0,
    }
    assert whole_answer({"prompts": 2, "prefill_joules": 4.0, "decode_joules": 6.0})["answer_joules"] == 5.0
    assert whole_answer({"accuracy": 50.0}) == {}
