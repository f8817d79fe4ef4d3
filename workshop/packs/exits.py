"""What a target's early exit says, computed apart from any run: ahead along a text, or one row again.

Must not know methods, devices or packs.
"""

from __future__ import annotations

from collections.abc import Sequence

from repro.models.forward.cached_features import lowest
from repro.models.forward.logit_cache import LogitCache
from repro.models.forward.network import DecoderNetwork
from repro.models.runtime.model import Model
from repro.models.tokens.prefix import Prefix
from workshop.packs.ahead import Ahead, Likely, exit_scores


def exits_ahead(target: Model, found: Sequence[Ahead], memo: LogitCache, likely: Likely) -> None:
    """Compute and store the scores of a draft's candidates after likely sequences of one text."""
    scores: dict[Prefix, dict[int, float]] = {}
    for prefix, more in exit_scores(target.exit_predictor, target.decoder(), found, likely):
        scores.setdefault(prefix, {}).update(more)
    memo.add_scores((prefix.digest, more) for prefix, more in scores.items())


def scores_again(target: Model, prefix: Prefix, tokens: Sequence[int]) -> dict[int, float]:
    """The scores of some tokens after a sequence, computed from an empty key-value cache."""
    predictor = target.exit_predictor
    step = DecoderNetwork(lowest(target.decoder(), predictor.layer)).begin([prefix])
    step.layers(0, predictor.layer)
    (scores,) = predictor.scores(step.hidden(), [tuple(tokens)])
    return dict(zip(tokens, scores.tolist(), strict=True))
