"""Whole layers removed by a ranking: by the loss without them, or by how little they change hidden states.

Owns what a level keeps of a model's layers, and the figures of a pruned model. Must not know how a ranking is
measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from repro.core.bounds import Part
from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.models.analysis.layers import block_elements, block_influences, losses_without, of_layers
from repro.models.transformer.decoder import Decoder


def layers_at(level: float, layers: int) -> int:
    """Number of layers that a level keeps: its share rounded down, at least 1."""
    # Rounding to ten decimals removes floating-point error, so that 0.7 of 10 layers is 7.
    return max(1, math.floor(round(level * layers, 10)))


def most_important(decoder: Decoder, worth: Sequence[float], level: float) -> Decoder:
    """Keep the most important layers of a decoder; ties keep the later layer.

    Args:
        decoder: whole decoder.
        worth: importance of each layer; larger is more important.
        level: share of layers to keep.
    """
    count = decoder.config.layers
    by_worth = sorted(range(count), key=worth.__getitem__)
    return of_layers(decoder, sorted(by_worth[count - layers_at(level, count) :]))


def figures_of(pruned: Decoder, original: Decoder) -> dict[str, float]:
    """Kept share of the matrix elements of the blocks, and number of kept layers."""
    ratio = block_elements(pruned) / block_elements(original)
    return {"true_ratio": ratio, "kept_layers": pruned.config.layers}


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
        pruned = most_important(decoder, block_influences(decoder, corpus), self.level)
        return Compressed(pruned, figures_of(pruned, decoder))
