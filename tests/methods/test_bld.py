"""Big Little Decoder does as a naive one does, and loses nothing where the draft agrees."""

from __future__ import annotations

import pytest
import torch

from repro.device.emulated import EmulatedDevice
from repro.methods.base import Request
from repro.methods.speculative.bld import BigLittle
from repro.models.forward.network import DecoderNetwork
from repro.models.tokens.prefix import Prefix
from tiny import NoisedNetwork, TableNetwork, answer, decoder, model_cost_of, plain, toy
from tiny_families import FAMILIES

VOCAB = 10
PROMPT = (0, 1)


def rounds(
    method: BigLittle, target: object, draft: object, **asked: object
) -> tuple[list[int], list[tuple]]:
    request = Request(**{"id": "", "prompt": PROMPT, "max_tokens": 12, **asked})
    made = answer(method, request, EmulatedDevice(toy()), {"target": target, "draft": draft})
    return made.tokens, [(r.drafted, r.rows, r.accepted, r.emitted, r.reason) for r in made.rounds]


def naive(
    method: BigLittle, target: TableNetwork, draft: TableNetwork, count: int, stop: set[int]
) -> tuple[list[int], list]:
    """The rules over lists of tokens: what comes out, and how many rows each call of the target had."""

    def said(model: TableNetwork, text: list[int]) -> torch.Tensor:
        return model.logits(Prefix.of(text)).double().softmax(-1)

    def ended() -> bool:
        return len(text) - start == count or text[-1] in stop

    text, start, calls = [*PROMPT], len(PROMPT), []
    text.append(int(said(target, text).argmax()))
    while not ended():
        fixed = len(text)
        while len(text) - fixed < method.most:
            chances = said(draft, text)
            if chances.max() < method.fallback:
                break
            text.append(int(chances.argmax()))
            if ended():
                return text[start:], calls
        losses = [-float(said(target, text[:i])[text[i]].log()) for i in range(fixed, len(text))]
        calls.append(len(losses) + 1)
        above = [fixed + i for i, loss in enumerate(losses) if loss > method.rollback]
        if above and int(said(target, text[: above[0]]).argmax()) != text[above[0]]:
            text = text[: above[0]]
        text.append(int(said(target, text).argmax()))
    return text[start:], calls


@pytest.mark.parametrize("seed", range(40))
def test_as_the_naive_one_does(seed: int) -> None:
    target, draft = TableNetwork(VOCAB, seed, 2.0), TableNetwork(VOCAB, seed + 100, 2.0)
    method = BigLittle(
        fallback=(0.0, 0.3, 0.5)[seed % 3], rollback=(0.5, 2.0, 4.0)[seed // 3 % 3], most=1 + seed % 4
    )
    stop = {seed % VOCAB} if seed % 2 else set()
    tokens, log = rounds(method, target, draft, max_tokens=30, stop=frozenset(stop))
    expected, calls = naive(method, target, draft, 30, stop)
    assert tokens == expected
    assert [rows for _, rows, *_ in log if rows] == calls
    assert sum(emitted for *_, emitted, _ in log) == len(tokens) - 1


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_lost_where_the_draft_agrees(family: str) -> None:
    """On real layers and caches, through fallbacks, rollbacks and both."""
    made, asked = decoder(family), Request("", tuple(range(9)), 9)
    right, said = plain(made, asked), {}
    methods = (BigLittle(fallback=0.0, most=3), BigLittle(), BigLittle(rollback=0.0, most=2))
    for method, strength in (*((m, 0.0) for m in methods), (BigLittle(fallback=1.0), 0.2)):
        draft = NoisedNetwork(DecoderNetwork(made), strength, said)
        networks = {"target": DecoderNetwork(made), "draft": draft}
        model_costs = dict.fromkeys(networks, model_cost_of(made))
        assert answer(method, asked, EmulatedDevice(toy()), networks, model_costs).tokens == right, (
            f"{method}"
        )
