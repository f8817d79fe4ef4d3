"""Big Little Decoder by its rules: round for round on a script, and as a naive one does on random tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from repro.core.errors import InputError
from repro.device.emulated import EmulatedDevice
from repro.methods.base import Request
from repro.methods.plain.autoregressive import DraftAlone, Standard
from repro.methods.speculative.bld import BigLittle, Lenient, logp
from repro.models.forward.network import DecoderNetwork, KnownStep, Logits, Step
from repro.models.tokens.acceptance import drive
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import Sampling
from repro.models.tokens.tree import TokenTree
from tiny import DEVICES, NoisedNetwork, TableNetwork, answer, decoder, model_cost_of, plain, toy
from tiny_families import FAMILIES

VOCAB = 10
PROMPT = (0, 1)


class Scripted:
    """Says a token at each place of the answer with a probability, maybe a second with another."""

    depth = 0

    def __init__(self, *said: tuple[int, float] | tuple[int, float, int, float]) -> None:
        self._said = said

    def start(self, prompt: Prefix) -> None:
        """Nothing is held."""

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        return KnownStep([Logits(self._logits(text.length - len(PROMPT))) for text in wanted])

    def _logits(self, place: int) -> torch.Tensor:
        token, share, *second = self._said[min(place, len(self._said) - 1)]
        given = {token: share, **dict([second] if second else [])}
        rest = (1 - sum(given.values())) / (VOCAB - len(given))
        return torch.tensor([given.get(t, rest) for t in range(VOCAB)]).log()

    def keep(self, text: Prefix) -> None:
        """Nothing is held."""


def rounds(
    method: BigLittle, target: object, draft: object, **asked: object
) -> tuple[list[int], list[tuple]]:
    request = Request(**{"id": "", "prompt": PROMPT, "max_tokens": 12, **asked})
    made = answer(method, request, EmulatedDevice(toy()), {"target": target, "draft": draft})
    return made.tokens, [(r.drafted, r.rows, r.accepted, r.emitted, r.reason) for r in made.rounds]


SURE, UNSURE = 0.9, 0.5
TARGET = Scripted(
    (2, SURE),  # of the prefill
    (3, SURE),
    (4, 0.6, 5, math.exp(-1.0)),  # the draft says 5, which may stand
    (6, SURE),
    (7, SURE),
    (8, 0.9, 9, math.exp(-3.0)),  # the draft says 9, which may not
    *((t, SURE) for t in (2, 3, 4, 5, 6, 7)),
)
DRAFT = Scripted(
    (1, SURE),  # never asked
    (3, SURE),
    (5, SURE),
    (6, UNSURE),
    (7, SURE),
    (9, SURE),
    (2, UNSURE),
    *((t, SURE) for t in (3, 4, 5, 1, 1)),
)


def test_every_rule_once() -> None:
    tokens, log = rounds(BigLittle(fallback=0.6, rollback=2.0, most=3), TARGET, DRAFT)
    assert log == [
        (2, 3, 2, 3, "confidence"),  # 3 5, a wrong token that may stand, and the target's 6
        (2, 3, 1, 2, "confidence"),  # 7 stands, 9 is taken back, the target says 8
        (0, 1, 0, 1, "confidence"),  # the draft is unsure at once; the target says 2
        (3, 4, 3, 4, "length"),  # 3 4 5 and the target's 6
        (1, 0, 1, 1, "end"),  # 1 fills the answer, and nobody looks at it
    ]
    assert tokens == [2, 3, 5, 6, 7, 8, 2, 3, 4, 5, 6, 1]


def test_a_token_that_ends_the_answer_is_not_looked_at() -> None:
    method = BigLittle(rollback=2.0, most=3)
    tokens, log = rounds(method, TARGET, DRAFT, stop=frozenset({5}))
    assert tokens == [2, 3, 5]
    assert log == [(2, 0, 2, 2, "end")]
    tokens, log = rounds(method, TARGET, DRAFT, stop=frozenset({8}))
    assert tokens == [2, 3, 5, 6, 7, 8]
    assert log[-1] == (2, 3, 1, 2, "confidence")
    assert rounds(method, TARGET, DRAFT, max_tokens=1) == ([2], [])


def test_the_target_s_one_token_ends_its_turn() -> None:
    """After a rollback the draft goes on; the release would call the target again."""
    always_wrong = Scripted((1, SURE))
    tokens, log = rounds(BigLittle(rollback=1.0), Scripted((2, SURE)), always_wrong, max_tokens=14)
    assert tokens == [2] * 4 + [1] * 10
    assert log == [(10, 11, 0, 1, "length")] * 3 + [(10, 0, 10, 10, "end")]


def naive(method: BigLittle, target: TableNetwork, draft: TableNetwork, count: int) -> tuple[list[int], list]:
    """The rules over lists of tokens: what comes out, and how many rows each call of the target had."""

    def said(model: TableNetwork, text: list[int]) -> torch.Tensor:
        return model.logits(Prefix.of(text)).double().softmax(-1)

    text, start, calls = [*PROMPT], len(PROMPT), []
    text.append(int(said(target, text).argmax()))
    while True:
        fixed = len(text)
        while len(text) - fixed < method.most:
            chances = said(draft, text)
            if chances.max() < method.fallback:
                break
            text.append(int(chances.argmax()))
            if len(text) - start == count:
                return text[start:], calls
        losses = [-float(said(target, text[:i])[text[i]].log()) for i in range(fixed, len(text))]
        calls.append(len(losses) + 1)
        above = [fixed + i for i, loss in enumerate(losses) if loss > method.rollback]
        if above and int(said(target, text[: above[0]]).argmax()) != text[above[0]]:
            text = text[: above[0]]
        text.append(int(said(target, text).argmax()))
        if len(text) - start == count:
            return text[start:], calls


@pytest.mark.parametrize("seed", range(40))
def test_as_the_naive_one_does(seed: int) -> None:
    target, draft = TableNetwork(VOCAB, seed, 2.0), TableNetwork(VOCAB, seed + 100, 2.0)
    method = BigLittle(
        fallback=(0.0, 0.3, 0.5)[seed % 3], rollback=(0.5, 2.0, 4.0)[seed // 3 % 3], most=1 + seed % 4
    )
    tokens, log = rounds(method, target, draft, max_tokens=30)
    expected, calls = naive(method, target, draft, 30)
    assert tokens == expected
    assert [rows for _, rows, *_ in log if rows] == calls
    assert sum(emitted for *_, emitted, _ in log) == 29


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("method", "alone"),
    [(BigLittle(fallback=1.0), "target"), (BigLittle(fallback=0.0, rollback=99.0, most=99), "draft")],
)
def test_at_the_extremes_one_model_writes_alone(device: str, method: BigLittle, alone: str) -> None:
    """A draft that is never sure enough leaves the text to the target; one that nobody corrects writes it."""
    opened, request = DEVICES[device](), Request("", PROMPT, 20)
    tables = {"target": TableNetwork(VOCAB, 1), "draft": TableNetwork(VOCAB, 2)}
    made = answer(method, request, opened, tables)
    if alone == "target":
        assert made.tokens == answer(Standard(), request, opened, tables).tokens
        assert [r.rows for r in made.rounds] == [1] * 19
    else:
        first, *rest = made.tokens
        own = answer(DraftAlone(), Request("", (*PROMPT, first), 19), opened, tables)
        assert rest == own.tokens
        assert [(r.rows, r.emitted) for r in made.rounds] == [(0, 19)]
    opened.close()


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


def accepted(rows: list[torch.Tensor], tokens: list[int], rollback: float) -> tuple[list[int], int]:
    tree = TokenTree(Prefix.empty())
    for end, token in enumerate(tokens):
        tree.grow(end, token)
    path, bonus = drive(Lenient(rollback).walk(tree), lambda node: Logits(rows[node]))
    return path, bonus


def test_what_the_target_would_say_itself_is_not_taken_back() -> None:
    """Nor is what comes after it, however unlikely: the release looks at the first alone."""
    flat = torch.tensor([0.1, *[0.0] * 99])
    sharp = torch.tensor([9.0, *[0.0] * 99])
    assert accepted([flat, sharp, sharp], [0, 7], rollback=4.0) == ([0, 1, 2], 0)
    assert accepted([sharp, sharp, sharp], [0, 7], rollback=4.0) == ([0, 1], 0)
    assert accepted([flat, sharp, sharp], [5, 7], rollback=4.0) == ([0], 0)


def test_a_token_at_the_threshold_stands() -> None:
    halves = torch.tensor([0.0, 0.0, -math.inf])
    loss = -logp(Logits(halves), 1)
    assert loss == pytest.approx(math.log(2))
    assert accepted([halves, halves], [1], rollback=loss) == ([0, 1], 0)
    assert accepted([halves, halves], [1], rollback=loss - 1e-6) == ([0], 0)


def test_a_token_beyond_the_ranks_has_at_most_the_last_rank_s_probability() -> None:
    logits = torch.arange(200.0).flip(0) / 50
    row, exact = Logits(logits), logits.log_softmax(-1)
    assert logp(row, 63) == pytest.approx(float(exact[63]))
    assert logp(row, 64) == logp(row, 199) == logp(row, 63) > float(exact[64])
    remembered = Logits(None, row.top_ranks())
    assert [logp(remembered, t) for t in (0, 63, 199)] == [logp(row, t) for t in (0, 63, 199)]


def test_sampling_is_refused() -> None:
    with pytest.raises(InputError, match=r"sampling.temperature is 0.7; bld decodes greedily alone, at 0"):
        rounds(BigLittle(), TARGET, DRAFT, sampling=Sampling(0.7))


def test_it_does_not_claim_the_target_s_text() -> None:
    assert not BigLittle.lossless
    assert (BigLittle().fallback, BigLittle().rollback, BigLittle().most) == (0.6, 5.0, 10)
