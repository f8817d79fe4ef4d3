"""Whole layers removed by a ranking: by the loss without them, or by how little they change hidden states.

Owns the use of these rankings. Must not know how they are measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from repro.core.bounds import Part
from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.methods.compression.level import figures_of, most_important
from repro.models.analysis.layers import block_influences, losses_without
from repro.models.transformer.decoder import Decoder


@register("compression", "layerwise")
@dataclass(frozen=True)
class Layerwise:
    """Removes the layers whose removal raises the loss least; ranked once, on the whole model.

    ElastiLM 5.1; the measure is that of its anchor layers (3.2).

    Attributes:
        level: share of layers kept, rounded down.
    """

    level: Part = 0.5

    calibrated: ClassVar[bool] = True

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        pruned = most_important(decoder, losses_without(decoder, corpus), self.level)
        return Compressed(pruned, figures_of(pruned, decoder))


@register("compression", "shortgpt")
@dataclass(frozen=True)
class ShortGpt:
    """Removes the layers of least block influence; ranked once, on the whole model.

    Block influence is 1 minus the mean cosine of a token's hidden states before and after the layer
    (ShortGPT Eq. 1).

    Attributes:
        level: share of layers kept, rounded down.
    """

    level: Part = 0.5

    calibrated: ClassVar[bool] = True

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        pruned_decoder = most_important(decoder, block_influences(decoder, corpus), self.level)
        return Compressed(pruned_decoder, figures_of(pruned_decoder, decoder))
