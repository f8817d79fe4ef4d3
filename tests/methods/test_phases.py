"""A request's seconds, each in the prefill of its models or in decoding; and drafts that are always right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from repro.device.emulated import EmulatedDevice
from repro.methods.base import Method, Request
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.methods.speculative.chain_sd import ChainSD, SpeculativeDecoding
from repro.methods.speculative.opt_tree import OptTree
from repro.methods.speculative.specinfer import SpecInfer
from repro.scenarios.generation import figures
from tiny import MODEL_COST, TableNetwork, answer, opened, toy

REQUEST = Request("r", tuple(range(8)) * 4, 12)
METHODS: list[Method] = [
    ChainSD(length=3),
    SpeculativeDecoding(),
    SpecInfer(expansion=(2, 1), drafts=2),
    EdgeLLM(limit=4, provisional="never"),
    EdgeLLM(limit=4),
    OptTree(),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_prefill_and_decoding_share_a_request(method: Method) -> None:
    device = EmulatedDevice(toy())
    roles = {role: TableNetwork(10, seed=1, sharpness=2) for role in method.places()}
    sessions = opened(method, device, roles, dict.fromkeys(roles, MODEL_COST))
    for session in sessions.values():
        session.start(REQUEST.prefix)
    made = device.play(method.serve(REQUEST, device, sessions))
    prefill, decode = ({p.name: p for p in device.trace.phases}[name] for name in ("prefill", "decode"))
    assert (prefill.start, prefill.end, decode.end) == (made.arrived, decode.start, made.ended)
    drafts = [session.passes for role, session in sessions.items() if role != "target"]
    for first, *_ in drafts:
        assert first.rows == len(REQUEST.prompt) + 1, "the prompt and the first token"
        assert prefill.start <= first.start < first.end <= prefill.end

    found = figures.timing([made], device.trace)
    assert found["prefill_seconds"] + found["decode_seconds"] == pytest.approx(found["latency"], rel=1e-12)
    starts, ends = [r.start for r in made.rounds], [r.end for r in made.rounds]
    assert starts == [decode.start, *ends[:-1]], "rounds follow one another from the beginning of decoding"
    while_decoding = [p for passes in drafts for p in passes[1:] if p.start < decode.end]
    drafted = figures.passes([made], sessions)["draft_seconds"]
    assert drafted == pytest.approx(sum(p.end - p.start for p in while_decoding), rel=1e-12)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("tokens", range(2, 14))
def test_a_draft_that_is_always_right_makes_no_error(method: Method, tokens: int) -> None:
    """However the end of the answer cuts its last draft."""
    same = dict.fromkeys(method.places(), TableNetwork(10, seed=1, sharpness=9))
    made = answer(method, replace(REQUEST, max_tokens=tokens), EmulatedDevice(toy()), same)
    assert figures.drafting([made])["error_rate"] == 0.0
    assert sum(r.emitted for r in made.rounds) == tokens - 1
