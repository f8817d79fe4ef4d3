"""The scores of an early-exit predictor, each computed once.

Hidden states are asked for only if a score is missing. Owns which scores are known. Must not know trees,
pruning or passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from repro.core.errors import InputError
from repro.libraries import Tensor
from repro.methods.lever.exit_predictor import Candidates, ExitPredictor, PredictorConfig, require_fit
from repro.models.checkpoints.digest import digest
from repro.models.forward.logit_cache import LogitCache
from repro.models.tokens.prefix import Prefix

if TYPE_CHECKING:
    from repro.models.runtime.model import Model


class ExitScores:
    """A predictor with a cache of its scores: rows of candidates and scores, by sequence.

    A score is a dot product of its own, so it depends neither on the other candidates nor on the tree.

    Attributes:
        layer: number of target layers computed before the predictor runs.
        predictor: opens the predictor, when a score is computed.
        digest: content hash of its folder.
    """

    kind = "predictor"

    def __init__(
        self,
        layer: int,
        predictor: Callable[[], ExitPredictor],
        memo: LogitCache | None = None,
        digest: str = "",
    ) -> None:
        self.layer = layer
        self.predictor = predictor
        self.digest = digest
        self._memo = memo

    @property
    def variant(self) -> str:
        """See `SideNetwork`."""
        return variant_of(self.digest)

    def compare(self, memo: LogitCache, judge: Callable[[int, float], None]) -> ComparedScores:
        """See `SideNetwork`."""
        return ComparedScores(self, memo, judge)

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
            return self._compute(hidden, candidates)
        looked_up = (self._look_up(memo, *node) for node in zip(prefixes, candidates, strict=True))
        cached = [row for row in looked_up if row is not None]
        if len(cached) == len(prefixes):
            return cached
        rows = self._compute(hidden, candidates)
        memo.add_scores(
            (prefix.digest, dict(zip(tokens, row, strict=True)))
            for prefix, tokens, row in zip(prefixes, candidates, rows, strict=True)
            if tokens
        )
        return rows

    def _compute(self, hidden: Callable[[], Tensor], candidates: Sequence[Candidates]) -> list[list[float]]:
        return [row.tolist() for row in self.predictor().scores(hidden(), candidates)]

    def _look_up(self, memo: LogitCache, prefix: Prefix, tokens: Candidates) -> list[float] | None:
        """The scores of some candidates; None unless all are known."""
        if not tokens:
            return []
        cached = memo.scores(prefix.digest)
        return [cached[token] for token in tokens] if cached.keys() >= set(tokens) else None


class ComparedScores(ExitScores):
    """Scores computed anew, each compared with the cached one, if there is one."""

    def __init__(self, scores: ExitScores, cache: LogitCache, judge: Callable[[int, float], None]) -> None:
        """See `SideNetwork.compare`."""
        super().__init__(scores.layer, scores.predictor, digest=scores.digest)
        self._cache = cache
        self._judge = judge

    def scores(
        self, prefixes: Sequence[Prefix], candidates: Sequence[Candidates], hidden: Callable[[], Tensor]
    ) -> list[list[float]]:
        """See `ExitScores`."""
        rows = super().scores(prefixes, candidates, hidden)
        for prefix, tokens, row in zip(prefixes, candidates, rows, strict=True):
            cached = self._cache.scores(prefix.digest) if tokens else {}
            for token, score in zip(tokens, row, strict=True):
                self._judge(prefix.length, abs(score - cached.get(token, score)))
        return rows


def variant_of(predictor: str) -> str:
    """The variant of a target's outputs that the scores of a predictor with this digest are."""
    return f"-exit{predictor[:16]}"


def scores_variant(target: Model) -> str:
    """The same, of the predictor that a target's checkpoint names; "" if it names none."""
    name = target.config.checkpoint and target.config.checkpoint.predictor
    return variant_of(digest(predictor_folder(target))) if name else ""


def exit_scores_of(target: Model) -> ExitScores:
    """The scores of a target's predictor, which is opened when the first is computed.

    Raises:
        InputError: the target has no predictor, or one that does not fit.
    """
    folder = predictor_folder(target)
    config = PredictorConfig.read(folder)
    require_fit(config, target.decoder_config)
    load = cache(lambda: ExitPredictor.load(folder, target.decoder(resident=False)))
    return ExitScores(config.layer, load, digest=digest(folder))


def predictor_folder(target: Model) -> Path:
    """The folder of a target's predictor; InputError if it has none."""
    from repro.models.checkpoints.origin import folders, to_install  # late: a list of methods opens none

    name = target.config.checkpoint.predictor if target.config.checkpoint else None
    path = next((folder for folder in folders(name) if folder.exists()), None) if name else None
    if path is None:
        raise InputError(
            f"{target.config.name} has no early-exit predictor"
            + (f" in {name!r}" if name else "")
            + to_install(name or "")
            + "; train one (workshop.training.train_predictor) and name it in the checkpoint's "
            "`predictor`, or choose method.pruning=off"
        )
    return path
