"""The target's own text verified in one pass: exact tokens, one row a token, wrong branches beside it."""

from __future__ import annotations

import pytest

from repro.core.errors import InputError
from repro.device.emulated import EmulatedDevice
from repro.device.trace import Phase, Span
from repro.methods.base import Decoding, Generation, Request
from repro.methods.speculative.nav import Nav
from repro.models.forward.network import DecoderNetwork
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import Sampling
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


def test_reading_and_computing_take_turns_unless_asked() -> None:
    (turns, _), (ahead, _) = (verified(Nav(prefetch=count)) for count in (0, 1))
    assert ahead.ended - ahead.arrived < turns.ended - turns.arrived


@pytest.mark.parametrize(("max_tokens", "rounds"), [(1, 0), (2, 1), (3, 1)])
def test_short_answers(max_tokens: int, rounds: int) -> None:
    made, _ = verified(Nav(batch=3), max_tokens=max_tokens)
    assert made.tokens == plain(decoder("llama-2"), asked())[:max_tokens]
    assert len(made.rounds) == rounds


def test_an_answer_ends_with_the_stop_token() -> None:
    whole = plain(decoder("llama-2"), asked())
    made, _ = verified(Nav(), stop=frozenset({whole[4]}))
    assert made.tokens == whole[: whole.index(whole[4]) + 1]
    assert len(made.rounds) == 1


def test_other_branches_are_wrong_from_their_first_token_on() -> None:
    """Also where the text's tokens have small numbers, as in `[3, 1, 0, 2, 1]`."""
    device, prompt = EmulatedDevice(toy()), Request("", (9,), 6)
    decoding = Decoding(prompt, device)
    decoding.first(3)
    tree = Nav(batch=5)._tree(decoding, [3, 1, 0, 2, 1, 4])
    texts = [tree.prefixes[leaf].tokens(start=2) for leaf in tree.leaves()]
    assert texts[0] == [1, 0, 2, 1]
    assert len(texts) == 5
    assert all(len(text) == 4 for text in texts)
    for other in texts[1:]:
        assert all(a != b for a, b in zip(other, texts[0], strict=True))


def test_what_cannot_be_verified_is_refused() -> None:
    with pytest.raises(InputError, match=r"sampling.temperature is 1.0; nav is greedy, at 0"):
        verified(Nav(), sampling=Sampling(temperature=1.0))
