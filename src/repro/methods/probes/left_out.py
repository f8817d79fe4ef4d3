"""What each layer is worth by the loss without it (ElastiLM, sec. 3.2 and Fig. 10b): a few are its anchors.

Owns what is said of one layer. Must not know how a loss is computed (`models/analysis/layer_importance.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar

import torch

from repro.core.errors import InputError
from repro.core.registry import register
from repro.methods.probes.base import Texts
from repro.models.analysis.layer_importance import loss, losses_without
from repro.models.transformer.decoder import Decoder
from repro.records.record import Scalar

MOST = 0.8
"""Of all increase; the paper speaks of an 80/20 rule."""


@register("probe", "left_out")
@dataclass(frozen=True)
class LeftOut:
    """The next-token loss of texts without one layer.

    Attributes:
        layer: the one to leave out, from 0.
        tokens: see `Probe`.
    """

    layer: int = 0
    tokens: int = 64

    calibrated: ClassVar[bool] = False

    def look(self, decoder: Decoder, corpus: Texts, texts: Texts) -> dict[str, Scalar]:
        """See `Probe`.

        Returns:
            loss, loss_without: mean next-token loss with all layers, and without this one, nats.
            increase: of the loss, nats.
            rank: 1 for the layer whose absence raises the loss most.
            carrying_share: share of layers, the smallest, whose absence makes up 80% of all increases.
        """
        if not 0 <= self.layer < decoder.config.layers:
            raise InputError(f"probe.layer is {self.layer}; choose from 0 to {decoder.config.layers - 1}")
        whole, without = _losses(decoder, texts)
        raised = [nats - whole for nats in without]
        return {
            "loss": whole,
            "loss_without": without[self.layer],
            "increase": raised[self.layer],
            "rank": 1 + sum(one > raised[self.layer] for one in raised),
            "carrying_share": carrying_share(raised),
        }


def carrying_share(raised: Sequence[float]) -> float:
    """The smallest share of layers that together have `MOST` of all increases; falls count as none."""
    ranked = sorted((max(0.0, one) for one in raised), reverse=True)
    wanted = MOST * sum(ranked)
    return sum(reached < wanted for reached in accumulate(ranked, initial=0.0)) / len(ranked)


@lru_cache(maxsize=1)
def _losses(decoder: Decoder, texts: Texts) -> tuple[float, tuple[float, ...]]:
    """With all layers, and without each: one reading for all layers that are asked about next."""
    sequences = [torch.tensor(text) for text in texts]
    return loss(decoder, sequences), tuple(losses_without(decoder, sequences))
