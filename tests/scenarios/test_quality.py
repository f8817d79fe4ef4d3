"""Lossless means lossless: a tie is counted, anything else stops the cell."""

import pytest
import torch

from repro.methods.base import Generation, Request
from repro.models.forward.exactness import divergence
from repro.models.forward.network import Logits
from repro.models.forward.side_by_side import GreedyText
from repro.models.tokens.prefix import Prefix
from repro.scenarios.generation.answers import NotLosslessError, require_lossless


def row(position: int) -> Logits:
    """What the target always says: token 0 best, token 1 close behind, token 2 far."""
    return Logits(torch.tensor([1.0, 1.0 - 1e-4, -3.0]))


def text(*tokens: int) -> GreedyText:
    return GreedyText(Prefix.of((5,)), list(tokens), [row(i) for i in range(len(tokens))])


@pytest.mark.parametrize(
    ("ours", "dtype", "position", "tie"),
    [
        ([0, 1, 0], "float32", 1, True),
        ([0, 0, 2], "float32", 2, False),
        ([0, 0, 2], "bfloat16", 2, False),
        ([7, 0, 0], "bfloat16", 0, False),
    ],
)
def test_first_difference_is_a_tie_within_the_bound(
    ours: list[int], dtype: str, position: int, tie: bool
) -> None:
    found = divergence(ours, [0, 0, 0], row, dtype)
    assert found is not None
    assert (found.position, found.tie) == (position, tie)


def answer(tokens: list[int]) -> Generation:
    return Generation(Request("p/0", (5,), 3), tokens=tokens)


def test_ties_are_counted_and_faults_stop() -> None:
    own = [text(0, 0), text(0, 0)]
    assert require_lossless([answer([0, 0]), answer([1, 0])], own, "float32") == 1
    with pytest.raises(NotLosslessError, match="p/0 leaves the target's own text at token 1"):
        require_lossless([answer([0, 0]), answer([0, 2])], own, "float32")


def test_an_answer_ends_where_the_own_text_has_a_stop_token() -> None:
    stopped = Generation(Request("p/0", (5,), 3, stop=frozenset({1})), tokens=[0, 1])
    assert require_lossless([stopped], [text(0, 1, 0)], "float32") == 0
