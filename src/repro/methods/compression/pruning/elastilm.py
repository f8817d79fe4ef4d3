"""ElastiLM's model elastification (3.2): a level of a reordered model, as views, anchor layers whole.

Owns the settings of a level. Must not know any other compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.methods.compression.pruning.elastic_levels import anchors_of, kept_at
from repro.methods.compression.pruning.elastication import cut, figures, parts_read, ranked
from repro.models.elastic.unit_importance import Measure
from repro.models.transformer.decoder import Decoder


@register("compression", "elastilm")
@dataclass(frozen=True)
class ElastiLM:
    """The most important units of each layer, but all of the anchor layers'.

    Attributes:
        level: the share of the blocks' weights kept.
        anchors: the share of layers that are locked: those without which the loss is largest. 0 locks none.
        rule: how the level becomes that of elastic layers, see `elastic_levels.kept_at`.
        order: `committed` takes what was made for the checkpoint and lies with the project, and the corpus
            where nothing does; `corpus` always profiles; `none` leaves units in the checkpoint's own order,
            with anchors as `committed` has them.
        aggregate: see `unit_importance.Measure`.
        pairing: likewise.
        lora: attach the adapters that were trained for this level, if there are any; the figure
            `lora_share` says whether there were.
    """

    level: float = 0.5
    anchors: float = 0.2
    rule: str = "paper"
    order: str = "committed"
    aggregate: str = "sum_abs"
    pairing: str = "shared"
    lora: bool = True

    calibrated: ClassVar[bool] = True

    def inputs(self) -> dict[str, str]:
        """See `identity.ReadsFiles`."""
        return parts_read(self.order)

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        found = ranked(decoder, corpus, self.order, Measure(self.aggregate, self.pairing))
        locked = anchors_of(found.profile.losses, self.anchors)
        kept = kept_at(decoder.config, self.level, locked, self.rule)
        made = cut(decoder, found, kept, "elastilm", self.level, self.lora)
        return Compressed(made.decoder, figures(decoder.config, found, made, locked))
