"""Prompt look-up drafts what transformers drafts; repeated text takes a verification for eleven tokens."""

from __future__ import annotations

import random

import pytest
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from repro.device.cost import FREE_MACHINE
from repro.device.emulated import EmulatedDevice
from repro.methods.base import Request
from repro.methods.speculative.prompt_lookup import PromptLookup, looked_up
from repro.models.tokens.prefix import Prefix
from tiny import TableNetwork, answer

STOP = 3


@pytest.mark.parametrize("vocabulary", [2, 4, 12, 200])
def test_drafts_are_those_of_transformers(vocabulary: int) -> None:
    chance, drafted = random.Random(vocabulary), 0
    for length in range(1, 60):
        tokens = [chance.randrange(vocabulary) for _ in range(length)]
        ngram, most = chance.choice([1, 2, 3, 5]), chance.choice([1, 4, 10])
        judge = PromptLookupCandidateGenerator(
            eos_token_id=torch.tensor([STOP]),
            num_output_tokens=most,
            max_matching_ngram_size=ngram,
            max_length=1000,
        )
        candidates, _ = judge.get_candidates(torch.tensor([tokens]))
        found = looked_up(tokens, ngram, most, {STOP})
        assert found == candidates[0, length:].tolist(), f"{tokens}, n-grams up to {ngram}, {most} tokens"
        drafted += len(found)
    assert drafted or vocabulary == 200


class Counting(TableNetwork):
    """A target that counts up and begins anew after 49."""

    def logits(self, text: Prefix) -> torch.Tensor:
        """One-hot logits of the next number."""
        return torch.nn.functional.one_hot(torch.tensor((text.token + 1) % 50), 50).float()


def test_a_repeated_text_takes_a_verification_for_eleven_tokens() -> None:
    """The prompt counts to 49 and the answer counts again: ten tokens are found, the target adds one."""
    request = Request("", (*range(50), 0, 1), 1 + 3 * 11)
    generation = answer(PromptLookup(), request, EmulatedDevice(FREE_MACHINE), {"target": Counting(50, 0)})
    assert generation.tokens == [*range(2, 36)]
    assert [(r.drafted, r.rows, r.emitted, r.reason) for r in generation.rounds] == [
        (10, 11, 11, "length")
    ] * 3
