"""Probability that the target accepts a draft token, from the draft's probability and its recent reliability
(LEVER sec. 4.2, "Gain").

Must not know trees, costs or devices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile

from repro.core.errors import InputError
from repro.models.tokens.prefix import Prefix

LEAST = 0.01
"""Lower bound of r, so that an unreliable draft can recover."""


class Reliability:
    """LEVER's factor r: recent frequency with which the target's token was in the draft's candidate set.

    Deviation: the paper says only that r follows "recent verification feedback". Here it is an exponential
    moving average over the nodes of the accepted path, including the one that gives the fallback token.

    Attributes:
        factor: r, in (0, 1].
    """

    def __init__(self, decay: float = 0.95, first: float = 1.0) -> None:
        """Begin at `first`; `decay` is the weight of the old average at each visited node.

        Raises:
            InputError: one of them is out of range.
        """
        if not 0 <= decay < 1:
            raise InputError(f"the reliability's decay is {decay}; it is a share from 0 to below 1")
        if not LEAST <= first <= 1:
            raise InputError(f"the first reliability is {first}; it is a share from {LEAST} to 1")
        self.factor = first
        self._decay = decay

    def observe(self, hits: Iterable[bool]) -> None:
        """Update r with visited nodes in order: whether the target's token was a candidate."""
        for hit in hits:
            self.factor = max(LEAST, self._decay * self.factor + (1 - self._decay) * hit)


def candidate_hits(candidates: Mapping[Prefix, Collection[int]], root: Prefix, text: Prefix) -> list[bool]:
    """Whether the target's tokens from `root` to `text`, the fallback last, were in their candidate sets.

    Args:
        candidates: C(u) of every expanded node; other nodes are skipped.
        root: root of the verified tree.
        text: the text after verification, fallback token included.
    """
    steps = list(takewhile(lambda prefix: prefix is not root, text.back()))
    return [
        step.token in candidates[step.parent]
        for step in reversed(steps)
        if step.parent is not None and step.parent in candidates
    ]


def calibrate(probabilities: Sequence[float], reliability: float) -> list[float]:
    """Calibrated probabilities of a node's candidates: Calibrate(., C(u), r) of LEVER Eq. 3.

    If the candidates' total probability exceeds `r`, all are scaled by one factor so that they sum to `r`;
    otherwise they stay. This keeps their ranking and ratios, and changes nothing as r approaches 1.

    Deviation: the paper gives properties of Calibrate but no formula. Multiplying by r has them too, but
    would also lower totals that are already below r.

    Args:
        probabilities: the draft's probabilities of one node's candidates; they sum to at most 1.
        reliability: r, in (0, 1].
    """
    total = sum(probabilities)
    share = reliability / total if total > reliability else 1.0
    return [share * probability for probability in probabilities]
