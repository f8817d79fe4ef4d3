"""ElastiLM's model elastification (3.2): a sub-model of reordered units as views, anchor layers unpruned.

Owns the settings of the compression. Must not know any other compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from repro.core.bounds import Part
from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.methods.elastilm.elastic_levels import (
    Anchors,
    Rule,
    anchors_of,
    sizes_at,
)
from repro.methods.elastilm.elastication import (
    UnitOrder,
    cut,
    figures,
    parts_read,
    rank_units,
)
from repro.methods.elastilm.unit_importance import Aggregate, Measure, Pairing
from repro.models.transformer.decoder import Decoder


@register("compression", "elastilm")
@dataclass(frozen=True)
class ElastiLM:
    """Keeps the most important units of each layer, and all units of anchor layers.

    Attributes:
        level: share of the blocks' weights kept.
        anchors: share of layers that are locked: those whose removal raises the loss most. 0 locks none.
        rule: how the level sets the share of the other layers, see `elastic_levels.sizes_at`.
        order: `committed` uses the project's profile of the checkpoint, or the corpus if there is none;
            `corpus` always profiles on the corpus; `none` keeps the checkpoint's own unit order, with
            anchors as `committed`.
        aggregate: see `unit_importance.Measure`.
        pairing: see `unit_importance.Measure`.
        lora: attach the adapters trained for this level, if any; the figure `lora_share` is 0 without.
    """

    level: Part = 0.5
    anchors: Anchors = 0.2
    rule: Rule = "paper"
    order: UnitOrder = "committed"
    aggregate: Aggregate = "sum_abs"
    pairing: Pairing = "shared"
    lora: bool = True

    calibrated: ClassVar[bool] = True

    def inputs(self) -> dict[str, str]:
        """See `identity.ReadsFiles`."""
        return parts_read(self.order)

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        ranking = rank_units(decoder, corpus, self.order, Measure(self.aggregate, self.pairing))
        locked = anchors_of(ranking.profile.losses, self.anchors)
        sizes = sizes_at(decoder.config, self.level, locked, self.rule)
        sub = cut(decoder, ranking, sizes, "elastilm", self.level, self.lora)
        return Compressed(sub.decoder, figures(decoder.config, ranking, sub, locked))
