"""Layer importance as the loss without the layer (ElastiLM, sec. 3.2 and Fig. 10b, anchor layers).

Owns the figures for one layer. Must not know how a loss is computed (`models/analysis/layer_importance.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, ClassVar

import torch
from annotated_types import Interval

from repro.core.bounds import Layers
from repro.core.errors import InputError
from repro.core.registry import register
from repro.methods.probes.base import Texts
from repro.models.analysis.layer_importance import loss, losses_without
from repro.models.transformer.decoder import Decoder
from repro.records.record import Scalar

MOST = 0.8
"""Share of the total loss increase in `carrying_share`; from the paper's 80/20 rule."""


@register("probe", "left_out")
@dataclass(frozen=True)
class LeftOut:
    """Next-token loss of texts with one layer removed.

    Attributes:
        layer: index of the removed layer, from 0.
        tokens: see `Probe`.
    """

    layer: Layers = 0
    tokens: Annotated[int, Interval(ge=2, le=1_000_000)] = 64

    calibrated: ClassVar[bool] = False

    def look(self, decoder: Decoder, corpus: Texts, texts: Texts) -> dict[str, Scalar]:
        """See `Probe`.

        Returns:
            loss, loss_without: mean next-token loss with all layers and without this one, in nats.
            increase: increase of the loss, in nats.
            rank: rank of the layer by increase; 1 is the largest.
            carrying_share: smallest share of layers that accounts for 80% of all increases.
        """
        if not 0 <= self.layer < decoder.config.layers:
            raise InputError(f"probe.layer is {self.layer}; choose from 0 to {decoder.config.layers - 1}")
        full_loss, losses = _losses(decoder, texts)
        increases = [nats - full_loss for nats in losses]
        return {
            "loss": full_loss,
            "loss_without": losses[self.layer],
            "increase": increases[self.layer],
            "rank": 1 + sum(increase > increases[self.layer] for increase in increases),
            "carrying_share": carrying_share(increases),
        }


def carrying_share(increases: Sequence[float]) -> float:
    """Smallest share of layers that accounts for `MOST` of all increases; decreases count as 0."""
    ranked = sorted((max(0.0, increase) for increase in increases), reverse=True)
    goal = MOST * sum(ranked)
    return sum(total < goal for total in accumulate(ranked, initial=0.0)) / len(ranked)


@lru_cache(maxsize=1)
def _losses(decoder: Decoder, texts: Texts) -> tuple[float, tuple[float, ...]]:
    """Loss with all layers, and without each one; cached for cells that differ only in the layer."""
    sequences = [torch.tensor(text) for text in texts]
    return loss(decoder, sequences), tuple(losses_without(decoder, sequences))
