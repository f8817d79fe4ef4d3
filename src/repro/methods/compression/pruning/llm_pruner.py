"""LLM-Pruner, a baseline of ElastiLM: uniform structured pruning by unit importance, weights copied.

Owns the choice of spared layers. Must not know any other compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from repro.core.bounds import Layers, Part
from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.methods.elastilm.elastic_levels import sizes_at
from repro.methods.elastilm.elastication import (
    UnitOrder,
    cut,
    figures,
    parts_read,
    rank_units,
)
from repro.methods.elastilm.lora import merge_adapters
from repro.methods.elastilm.submodels import dense_copy
from repro.methods.elastilm.unit_importance import Aggregate, Measure
from repro.models.transformer.decoder import Decoder


@register("compression", "llm_pruner")
@dataclass(frozen=True)
class LLMPruner:
    """Uniform pruning ratio in all layers but spared ones, weights copied; no per-layer sensitivity.

    The release runs this baseline on ElastiLM's own sub-models, anchors included; here it has no anchors.

    Attributes:
        level: share of the blocks' weights kept.
        spare_first: unpruned layers at the beginning; LLM-Pruner's scripts spare 4 of 32.
        spare_last: unpruned layers at the end; LLM-Pruner's scripts spare 2.
        order: see `elastilm.ElastiLM`.
        aggregate: see `unit_importance.Measure`.
        lora: merge the adapters trained for this level, if any.
    """

    level: Part = 0.5
    spare_first: Layers = 0
    spare_last: Layers = 0
    order: UnitOrder = "committed"
    aggregate: Aggregate = "sum_abs"
    lora: bool = True

    calibrated: ClassVar[bool] = True

    def inputs(self) -> dict[str, str]:
        """See `identity.ReadsFiles`."""
        return parts_read(self.order)

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        count = decoder.config.layers
        locked = [i for i in range(count) if i < self.spare_first or i >= count - self.spare_last]
        ranking = rank_units(decoder, corpus, self.order, Measure(self.aggregate))
        sizes = sizes_at(decoder.config, self.level, locked)
        sub = cut(decoder, ranking, sizes, "llm_pruner", self.level, self.lora)
        return Compressed(
            dense_copy(merge_adapters(sub.decoder)), figures(decoder.config, ranking, sub, locked)
        )
