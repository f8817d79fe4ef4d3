"""Which tokens of a prompt stay when it is shortened (ElastiLM 3.3).

Owns what a scorer of tokens is and the choice by its scores. Must not know who scores, nor how long a prompt
may be.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from repro.device.op import Op


class Scorer(Protocol):
    """Which tokens of a prompt matter: the place of the language model's score head (ElastiLM 3.3)."""

    def scores(self, tokens: Sequence[int]) -> Sequence[float]:
        """One number a token, larger for one that should stay."""

    def ops(self, tokens: Sequence[int], on: str) -> tuple[Op, ...]:
        """What scoring takes on a processor, before the prefill; nothing where nobody computes."""
        return ()


@dataclass(frozen=True)
class AnyToken(Scorer):
    """Chance: what a prompt loses without a score head (ElastiLM 5.5).

    Attributes:
        seed: of the draw, which depends on nothing but it and a token's place, so that a longer beginning
            keeps what a shorter one does.
    """

    seed: int = 0

    def scores(self, tokens: Sequence[int]) -> Sequence[float]:
        """See `Scorer`."""
        return [random.Random(f"{self.seed}/{place}").random() for place in range(len(tokens))]


def shortened(
    tokens: Sequence[int], count: int, scores: Sequence[float], spare: int | None = None
) -> tuple[int, ...]:
    """The tokens with the highest scores, of equals the first, in their own order.

    Args:
        tokens: the whole prompt.
        count: how many stay, at least those that may not be dropped.
        scores: of all tokens, or of as many as may be dropped.
        spare: only so many at the beginning may be dropped; `None` is any.
    """
    free = len(tokens) if spare is None else spare
    kept = count - (len(tokens) - free)
    best = sorted(range(free), key=lambda i: (-scores[i], i))[:kept]
    return (*(tokens[i] for i in sorted(best)), *tokens[free:])
