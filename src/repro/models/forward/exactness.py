"""Comparison of two greedy answers of one model: is their first difference a rounding tie or a bug?

Batched and single-token passes round differently, so in low precision two nearly equal candidates may swap.
A larger difference is a bug in a method that claims to be lossless. Must not know about methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from repro.models.forward.network import Logits

BOUNDS = {"float32": 1e-3}
"""Largest logit margin that rounding explains. Batched fp32 logits differ from single ones by under 1e-4."""

LOW_PRECISION = 0.25
"""The bound below fp32: bf16 values near 20 are 0.125 apart, and errors of several layers add up."""


class Divergence(NamedTuple):
    """The first token at which an answer differs from the model's own answer.

    Attributes:
        position: number of equal tokens before it.
        margin: logit of the model's own token minus that of the answer's; infinite beyond the top 64.
        tie: whether rounding explains the difference.
    """

    position: int
    margin: float
    tie: bool


def divergence(
    ours: Sequence[int], greedy: Sequence[int], row: Callable[[int], Logits], dtype: str
) -> Divergence | None:
    """The first difference between an answer and the model's own answer, `None` if they are equal.

    Args:
        ours: the answer of a method that claims to be lossless.
        greedy: the model's own greedy tokens.
        row: the model's own row from which a token of `greedy` was chosen, by the token's index.
        dtype: its precision, one of `weights.DTYPES`.
    """
    if list(ours) == list(greedy):
        return None
    position = next((i for i, (a, b) in enumerate(zip(ours, greedy, strict=False)) if a != b), None)
    if position is None:  # one answer is a prefix of the other; rounding cannot explain that
        return Divergence(min(len(ours), len(greedy)), float("inf"), False)
    logps = dict(zip(*row(position).top_ranks(), strict=True))
    margin = logps.get(greedy[position], float("-inf")) - logps.get(ours[position], float("-inf"))
    return Divergence(position, margin, abs(margin) <= rounding(dtype))


def rounding(dtype: str) -> float:
    """Largest difference of two logits that rounding explains in a precision."""
    return BOUNDS.get(dtype, LOW_PRECISION)
