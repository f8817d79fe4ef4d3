"""Where two answers of one model part: a tie that rounding decided, or a fault. Knows nothing of methods.

Batched rows round differently from single ones, so in low precision two candidates that are as good as
equal may change places. Anything beyond that is a fault of whoever claims to be lossless.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from repro.models.forward.network import Network
from repro.models.tokens.prefix import Prefix

BOUNDS = {"float32": 1e-3}
"""Largest logit margin that rounding explains. In fp32 batched rows differ from single ones by under 1e-4."""

LOW_PRECISION = 0.25
"""The same below fp32: bf16 numbers near 20 are 0.125 apart, and the errors of several layers add up."""


class Divergence(NamedTuple):
    """The first token at which an answer leaves the model's own.

    Attributes:
        position: tokens that agree before it.
        margin: how much better the model likes its own token, in logits; infinite beyond its first 64 ranks.
        tie: whether rounding explains it.
    """

    position: int
    margin: float
    tie: bool


def divergence(
    prompt: Sequence[int], ours: Sequence[int], own: Sequence[int], network: Network, dtype: str
) -> Divergence | None:
    """The first difference between an answer and the model's own answer, `None` if there is none.

    Args:
        prompt: tokens before both.
        ours: the answer of a method that claims to be lossless.
        own: the model's own greedy tokens.
        network: the model.
        dtype: how it computes, one of `weights.DTYPES`.
    """
    if list(ours) == list(own):
        return None
    position = next((i for i, (a, b) in enumerate(zip(ours, own, strict=False)) if a != b), None)
    if position is None:  # one goes on where the other ends, which no rounding explains
        return Divergence(min(len(ours), len(own)), float("inf"), False)
    logps = _ranks(prompt, own[:position], network)
    margin = logps.get(own[position], float("-inf")) - logps.get(ours[position], float("-inf"))
    return Divergence(position, margin, abs(margin) <= BOUNDS.get(dtype, LOW_PRECISION))


def _ranks(prompt: Sequence[int], answer: Sequence[int], network: Network) -> dict[int, float]:
    text = Prefix.of(prompt)
    network.start(text)
    step = network.begin([text.extend(answer)])
    step.layers(0, network.depth)
    return dict(zip(*step.rows()[0].ranked(), strict=True))
