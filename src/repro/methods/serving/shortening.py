"""Prompt compression by token scores (ElastiLM 3.3).

Owns the `Scorer` interface and the selection by scores. Must not know how scores are computed or how many
tokens to keep.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from repro.device.op import Op


class Scorer(Protocol):
    """Scores prompt tokens by importance, as the TLM's score head does (ElastiLM 3.3)."""

    def scores(self, tokens: Sequence[int]) -> Sequence[float]:
        """One score per token; tokens with larger scores are kept."""

    def ops(self, tokens: Sequence[int], on: str) -> tuple[Op, ...]:
        """Ops of scoring on a processor, before the prefill; none if no model computes."""
        return ()


@dataclass(frozen=True)
class AnyToken(Scorer):
    """Random token scores: the baseline without a score head (ElastiLM 5.5).

    Attributes:
        seed: a score depends only on the seed and the token's position, so prompts with a common beginning
            share its scores.
    """

    seed: int = 0

    def scores(self, tokens: Sequence[int]) -> Sequence[float]:
        """See `Scorer`."""
        return [random.Random(f"{self.seed}/{position}").random() for position in range(len(tokens))]


def shorten_prompt(
    tokens: Sequence[int], count: int, scores: Sequence[float], droppable_tokens: int | None = None
) -> tuple[int, ...]:
    """Keep the tokens with the highest scores, in prompt order; ties keep the earlier token.

    Args:
        tokens: the whole prompt.
        count: number of tokens to keep, at least those that may not be dropped.
        scores: scores of all tokens, or of those that may be dropped.
        droppable_tokens: number of tokens at the beginning that may be dropped; `None`: all.
    """
    droppable_count = len(tokens) if droppable_tokens is None else droppable_tokens
    kept_count = count - (len(tokens) - droppable_count)
    best_indices = sorted(range(droppable_count), key=lambda i: (-scores[i], i))[:kept_count]
    return (*(tokens[i] for i in sorted(best_indices)), *tokens[droppable_count:])
