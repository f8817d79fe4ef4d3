"""How likely the target is to follow a drafted token, by the draft's word and by how it fared of late (LEVER
sec. 4.2, "Gain").

Knows nothing of trees, costs or devices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile

from repro.core.errors import InputError
from repro.models.tokens.prefix import Prefix

LEAST = 0.01
"""The smallest r: a draft that always failed may still come back."""


class Reliability:
    """LEVER's factor r: how often, of late, the target's token was in the draft's candidate set.

    Deviation: the paper says only that r follows "recent verification feedback". Here it is an exponential
    moving average over the nodes whose target token verification revealed: those of the accepted path, the
    last of which gives the fallback token.

    Attributes:
        factor: r, in (0, 1].
    """

    def __init__(self, decay: float = 0.95, first: float = 1.0) -> None:
        """Begin at `first`; `decay` is what the average keeps of itself with each visited node.

        Raises:
            InputError: one of them is no such share.
        """
        if not 0 <= decay < 1:
            raise InputError(f"the reliability's decay is {decay}; it is a share from 0 to below 1")
        if not LEAST <= first <= 1:
            raise InputError(f"the first reliability is {first}; it is a share from {LEAST} to 1")
        self.factor = first
        self._decay = decay

    def observe(self, hits: Iterable[bool]) -> None:
        """Take note of visited nodes, in their order: was the target's token a candidate?"""
        for hit in hits:
            self.factor = max(LEAST, self._decay * self.factor + (1 - self._decay) * hit)


def candidate_hits(candidates: Mapping[Prefix, Collection[int]], root: Prefix, text: Prefix) -> list[bool]:
    """Whether the target's tokens from `root` to `text`, the fallback last, were in their candidate sets.

    Args:
        candidates: C(u) of every node that the draft expanded; a node without one says nothing.
        root: the root of the tree that was verified.
        text: the text after verification, fallback token included.
    """
    steps = list(takewhile(lambda prefix: prefix is not root, text.back()))
    return [
        step.token in candidates[step.parent]
        for step in reversed(steps)
        if step.parent is not None and step.parent in candidates
    ]


def calibrate(probabilities: Sequence[float], reliability: float) -> list[float]:
    """What a draft's probabilities of a node's candidates are worth: Calibrate(., C(u), r) of LEVER Eq. 3.

    The sum over a candidate set is the draft's own claim that the target's token is in it. A claim above `r`
    is brought down to `r`, by one factor for all candidates; a lower one stays. So the ranking and the ratios
    within the set stay the draft's, and as r nears 1 the probabilities are left as they are.

    Deviation: the paper gives properties and no formula; a plain product with r has the properties as well,
    but would also lower what the draft is rightly unsure of.

    Args:
        probabilities: the draft's, of all candidates of one node; they sum to at most 1.
        reliability: r, in (0, 1].
    """
    claimed = sum(probabilities)
    share = reliability / claimed if claimed > reliability else 1.0
    return [share * probability for probability in probabilities]
