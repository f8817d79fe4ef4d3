"""LLM-Pruner, a baseline of ElastiLM: every layer loses units by the same importance; the rest is a copy.

Owns that choice. Must not know any other compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from repro.core.errors import InputError
from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.methods.compression.pruning.elastic_levels import kept_at
from repro.methods.compression.pruning.elastication import cut, figures, parts_read, ranked
from repro.models.elastic.lora import merged
from repro.models.elastic.submodels import copied
from repro.models.elastic.unit_importance import Measure
from repro.models.transformer.decoder import Decoder


@register("compression", "llm_pruner")
@dataclass(frozen=True)
class LLMPruner:
    """Every layer keeps the level's share of its units, in memory of its own; nothing is found out of layers.

    The release runs this baseline on ElastiLM's own sub-models, anchors included; here it has none.

    Attributes:
        level: the share of the blocks' weights kept.
        spare_first: layers at the beginning that stay whole; LLM-Pruner's scripts spare 4 of 32.
        spare_last: layers at the end; they spare 2.
        order: see `elastilm.ElastiLM`.
        aggregate: see `unit_importance.Measure`.
        lora: recover by adapters that were trained for this, if there are any.
    """

    level: float = 0.5
    spare_first: int = 0
    spare_last: int = 0
    order: str = "committed"
    aggregate: str = "sum_abs"
    lora: bool = True

    calibrated: ClassVar[bool] = True

    def inputs(self) -> dict[str, str]:
        """See `identity.ReadsFiles`."""
        return parts_read(self.order)

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        if min(self.spare_first, self.spare_last) < 0:
            raise InputError(
                f"spare_first={self.spare_first}, spare_last={self.spare_last}: both are at least 0"
            )
        count = decoder.config.layers
        locked = [i for i in range(count) if i < self.spare_first or i >= count - self.spare_last]
        found = ranked(decoder, corpus, self.order, Measure(self.aggregate))
        made = cut(
            decoder, found, kept_at(decoder.config, self.level, locked), "llm_pruner", self.level, self.lora
        )
        return Compressed(copied(merged(made.decoder)), figures(decoder.config, found, made, locked))
