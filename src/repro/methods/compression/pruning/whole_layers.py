"""Whole layers removed by a ranking: by the loss without them, or by how little they change hidden states.

Owns the use of these rankings. Must not know how they are measured.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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


@dataclass(frozen=True)
class WholeLayers(ABC):
    """Removes the least important layers; ranked once, on the whole model.

    Attributes:
        level: share of layers kept, rounded down.
    """

    level: Part = 0.5

    calibrated: ClassVar[bool] = True

    @staticmethod
    @abstractmethod
    def importance(decoder: Decoder, corpus: Sequence[Tensor]) -> Sequence[float]:
        """The importance of each layer on a corpus."""

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        pruned = most_important(decoder, self.importance(decoder, corpus), self.level)
        return Compressed(pruned, figures_of(pruned, decoder))


@register("compression", "layerwise")
@dataclass(frozen=True)
class Layerwise(WholeLayers):
    """Removes the layers whose removal raises the loss least; ranked once, on the whole model.

    ElastiLM 5.1; the measure is that of its anchor layers (3.2).
    """

    importance = staticmethod(losses_without)


@register("compression", "shortgpt")
@dataclass(frozen=True)
class ShortGpt(WholeLayers):
    """Removes the layers of least block influence; ranked once, on the whole model.

    Block influence is 1 minus the mean cosine of a token's hidden states before and after the layer
    (ShortGPT Eq. 1).
    """

    importance = staticmethod(block_influences)
