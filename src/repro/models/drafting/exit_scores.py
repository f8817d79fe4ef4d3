"""The scores of an early-exit predictor, each computed once.

Hidden states are asked for only if a score is missing. Owns which scores are known. Must not know trees,
pruning or passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from repro.models.drafting.early_exit import Candidates, ExitPredictor
from repro.models.forward.logit_cache import LogitCache
from repro.models.tokens.prefix import Prefix

if TYPE_CHECKING:
    from torch import Tensor


class ExitScores:
    """A predictor with a cache of its scores: rows of candidates and scores, by sequence.

    A score is a dot product of its own, so it depends neither on the other candidates nor on the tree.

    Attributes:
        layer: number of target layers computed before the predictor runs.
        predictor: opens the predictor, when a score is computed.
    """

    def __init__(
        self, layer: int, predictor: Callable[[], ExitPredictor], memo: LogitCache | None = None
    ) -> None:
        self.layer = layer
        self.predictor = predictor
        self._memo = memo

    def remember(self, memo: LogitCache) -> None:
        """Look scores up in a cache from now on, and store new ones in it."""
        self._memo = memo

    def scores(
        self, prefixes: Sequence[Prefix], candidates: Sequence[Candidates], hidden: Callable[[], Tensor]
    ) -> list[list[float]]:
        """Scores of each sequence's candidates, of fp32.

        Args:
            prefixes: the sequences.
            candidates: the candidates after each; a sequence without any costs nothing.
            hidden: computes the hidden states after layer `layer`, fp32 `[len(prefixes), d]`.
        """
        memo = self._memo
        if memo is None:
            return self._computed(hidden, candidates)
        looked_up = (self._known(memo, *one) for one in zip(prefixes, candidates, strict=True))
        known = [found for found in looked_up if found is not None]
        if len(known) == len(prefixes):
            return known
        computed = self._computed(hidden, candidates)
        memo.add_scores(
            (prefix.digest, dict(zip(tokens, found, strict=True)))
            for prefix, tokens, found in zip(prefixes, candidates, computed, strict=True)
            if tokens
        )
        return computed

    def _computed(self, hidden: Callable[[], Tensor], candidates: Sequence[Candidates]) -> list[list[float]]:
        return [found.tolist() for found in self.predictor().scores(hidden(), candidates)]

    def _known(self, memo: LogitCache, prefix: Prefix, tokens: Candidates) -> list[float] | None:
        """The scores of some candidates; None unless all are known."""
        if not tokens:
            return []
        found = memo.scores(prefix.digest)
        return [found[token] for token in tokens] if found.keys() >= set(tokens) else None
