"""The target's own text verified in one pass: exact tokens, one row a token."""

from __future__ import annotations

import pytest

from repro.device.emulated import EmulatedDevice
from repro.device.trace import Phase, Span
from repro.methods.base import Generation, Request
from repro.methods.speculative.nav import Nav
from repro.models.forward.network import DecoderNetwork
from repro.models.tokens.prefix import Prefix
from tiny import decoder, model_cost_of, opened, plain, toy
from tiny_families import FAMILIES

PROMPT, TOKENS = (5, 3, 8, 1), 8


def asked(**changes: object) -> Request:
    return Request(**{"id": "0", "prompt": PROMPT, "max_tokens": TOKENS, **changes})


def verified(method: Nav, family: str = "llama-2", **changes: object) -> tuple[Generation, EmulatedDevice]:
    made, device = decoder(family), EmulatedDevice(toy())
    target = {"target": DecoderNetwork(made)}
    sessions = opened(method, device, target, {"target": model_cost_of(made)})
    sessions["target"].start(Prefix.of(PROMPT))
    return device.play(method.serve(asked(**changes), device, sessions)), device


def spans_of(device: EmulatedDevice, kind: str, phase: Phase) -> list[Span]:
    return [s for s in device.trace if s.kind == kind and phase.start <= s.start < phase.end]


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_text_is_the_targets_own_and_takes_one_pass(family: str, batch: int) -> None:
    made, device = verified(Nav(batch=batch), family)
    assert made.tokens == plain(decoder(family), asked())
    # The prefill gives the first token, and the last follows from the others.
    (found,) = made.rounds
    assert (found.accepted, found.emitted, found.reach, found.reason) == (TOKENS - 2, TOKENS - 1, 6, "known")
    assert found.drafted == batch * (TOKENS - 2)
    assert found.rows == batch * (TOKENS - 1)  # each branch with the root
    rehearsal, prefill, decode = device.trace.phases
    assert [p.name for p in (rehearsal, prefill, decode)] == ["rehearsal", "prefill", "decode"]
    assert made.arrived == rehearsal.end
    assert (found.start, found.end) == (decode.start, decode.end)
    for phase, rows in ((prefill, len(PROMPT)), (decode, batch * (TOKENS - 1))):
        loads, layers = (spans_of(device, kind, phase) for kind in ("load", "layer"))
        assert [s.rows for s in layers] == [rows] * 4
        assert len(loads) == 4
    assert [s.rows for s in spans_of(device, "head", decode)] == [1 + 6 if batch == 1 else found.rows]
