"""Prompts that are decoded side by side have the texts that each has alone."""

from __future__ import annotations

import pytest
import torch

from repro.models.forward.network import DecoderNetwork, Logits, NotFiniteError
from repro.models.forward.side_by_side import greedy_texts, greedy_tokens
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.decoder import Decoder
from tiny import alone, decoder
from tiny_families import FAMILIES

PROMPTS = ([7, 1, 9, 3, 4, 2], [5], [8, 8, 2], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])


@pytest.mark.parametrize("family", FAMILIES)
def test_each_text_is_the_one_that_it_has_alone(family: str) -> None:
    made = decoder(family)
    prompts = [Prefix.of(tokens) for tokens in PROMPTS]
    seen: list[int] = []
    texts = greedy_texts(made, prompts, 10, seen.append)
    assert seen == list(range(1, 11))
    for text in texts:
        assert text.tokens == greedy_tokens(DecoderNetwork(made), text.prompt, 10, ())
        for context, row in zip(text.contexts(), text.rows, strict=True):
            expected = Logits(alone(made, context.tokens())).top_ranks()
            torch.testing.assert_close(
                torch.tensor(row.top_ranks()[1]), torch.tensor(expected[1]), atol=2e-4, rtol=0
            )


def test_logits_that_are_not_finite_give_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    made, head = decoder("qwen-3"), Decoder.head
    monkeypatch.setattr(Decoder, "head", lambda self, x: head(self, x) * torch.nan)
    with pytest.raises(NotFiniteError, match="the largest logit is nan"):
        greedy_texts(made, [Prefix.of([1, 2])], 3)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_one_wrong_logit_is_enough(value: float) -> None:
    logits = torch.tensor([0.0, 1.0, 2.0])
    logits[1] = value
    with pytest.raises(NotFiniteError):
        _ = Logits(logits).choice
    with pytest.raises(NotFiniteError):
        Logits(logits).top_ranks()
