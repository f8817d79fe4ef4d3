"""Likelihoods in one branching pass are those of whole sequences read one by one."""

import pytest
import torch

from repro.core.errors import InputError
from repro.models.analysis.likelihood import Likelihood, Reader, common
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from tiny import decoder
from tiny_families import VOCAB

FAMILIES = ("llama-2", "mistral", "qwen-2.5", "gemma-2", "gemma-3", "gpt-2", "phi-2", "opt")
Pair = tuple[tuple[int, ...], tuple[int, ...]]


def text(seed: int, count: int) -> tuple[int, ...]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(VOCAB, (count,), generator=generator).tolist())


def plainly(made: Decoder, context: tuple[int, ...], continuation: tuple[int, ...]) -> Likelihood:
    """The whole sequence from an empty cache, a row after the other."""
    whole = torch.tensor([*context, *continuation])
    logits = made.forward(whole, torch.arange(len(whole)), None, KVCache(made.config, len(whole)))
    said = logits[len(context) - 1 : -1].log_softmax(-1)
    wanted = whole[len(context) :]
    nats = said[torch.arange(len(wanted)), wanted].sum()
    likeliest = said.argmax(-1) == wanted
    return Likelihood(float(nats), bool(likeliest.all()), bool(likeliest[-1]))


def require_same(found: list[Likelihood], made: Decoder, pairs: list[Pair]) -> None:
    expected = [plainly(made, *pair) for pair in pairs]
    assert [one.nats for one in found] == pytest.approx([one.nats for one in expected], abs=1e-4)
    assert [one.greedy for one in found] == [one.greedy for one in expected]
    assert [one.last for one in found] == [one.last for one in expected]


def rows() -> list[list[Pair]]:
    """Choices of a context; a shared preamble; one token of context; choices of one token; filled blanks."""
    preamble, tail = text(0, 19), text(1, 5)
    return [
        [(text(2, 17), text(10 + i, 3 + i)) for i in range(4)],
        [((*preamble, *text(3, 7)), text(20 + i, 4)) for i in range(3)],
        [((*preamble, *text(4, 3)), text(30 + i, 2)) for i in range(3)],
        [(preamble, text(35, 1)), (preamble, text(36, 6))],
        [(preamble, text(40 + i, 1)) for i in range(4)],
        [(preamble[:9], text(50, 2))],
        [(text(5, 1), text(60 + i, 3)) for i in range(2)],
        [((*preamble, *text(70 + i, 1 + i)), tail) for i in range(2)],
        [(text(80 + i, 2 + i), tail) for i in range(2)],  # nothing in common, not even the first token
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_one_branching_pass_says_what_whole_sequences_say(family: str) -> None:
    made = decoder(family)
    reader = Reader(made)
    for pairs in rows():
        require_same(reader.score(pairs), made, pairs)
    require_same(reader.score(rows()[3]), made, rows()[3])


def test_what_rows_begin_with_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, read = decoder("llama-2"), []
    embed = made.embed
    monkeypatch.setattr(made, "embed", lambda tokens, at: read.append(tokens.tolist()) or embed(tokens, at))
    reader = Reader(made)
    shared = text(0, 20)
    reader.score([((*shared, 5), (7, 8)), ((*shared, 5), (9, 8))])
    reader.score([((*shared, 6), (7, 8)), ((*shared, 6), (9, 8))])
    reader.score([((*shared, 6), (3,)), ((*shared, 6), (4,))])
    assert read == [[*shared, 5, 7, 9], [6, 7, 9], [6]]


def test_greedy_continuations_are_known_as_such() -> None:
    made, context = decoder("qwen-3"), text(0, 8)
    tokens = list(context)
    for _ in range(3):
        at = torch.arange(len(tokens))
        tokens.append(
            int(made.forward(torch.tensor(tokens), at, None, KVCache(made.config, 16))[-1].argmax())
        )
    own = tuple(tokens[8:])
    other = (*own[:2], (own[2] + 1) % VOCAB)
    assert [one.greedy for one in Reader(made).score([(context, own), (context, other)])] == [True, False]


def test_slices_of_the_vocabulary_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    made, pairs = decoder("gemma-3"), rows()[0]
    whole = Reader(made).score(pairs)
    monkeypatch.setattr("repro.models.analysis.likelihood.MOST_LOGITS", 1)
    sliced = Reader(made).score(pairs)
    assert [one.nats for one in sliced] == pytest.approx([one.nats for one in whole], abs=1e-5)


def test_nothing_follows_nothing() -> None:
    for pair in [((), (1,)), ((1,), ())]:
        with pytest.raises(InputError, match="no token"):
            Reader(decoder("llama-2")).score([pair])


def test_common_beginnings() -> None:
    assert common([(1, 2, 3), (1, 2), (1, 2, 4)]) == 2
    assert common([(), (1,)]) == 0
