"""The level of a pruned model: the share of its blocks' matrices to keep.

Owns the check of a level, the number of whole layers it keeps, and the figures of the outcome. Must not know
how layers are ranked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from repro.models.analysis.layers import block_elements, of_layers
from repro.models.transformer.decoder import Decoder


def layers_at(level: float, layer_count: int) -> int:
    """Number of layers that a level keeps: its share rounded down, at least 1."""
    # Rounding to ten decimals removes floating-point error, so that 0.7 of 10 layers is 7.
    return max(1, math.floor(round(level * layer_count, 10)))


def most_important(decoder: Decoder, importances: Sequence[float], level: float) -> Decoder:
    """Keep the most important layers of a decoder; ties keep the later layer.

    Args:
        decoder: whole decoder.
        importances: importance of each layer; larger is more important.
        level: share of layers to keep.
    """
    count = decoder.config.layers
    by_importance = sorted(range(count), key=importances.__getitem__)
    return of_layers(decoder, sorted(by_importance[count - layers_at(level, count) :]))


def figures_of(pruned_decoder: Decoder, whole_decoder: Decoder) -> dict[str, float]:
    """Kept share of the matrix elements of the blocks, and number of kept layers."""
    ratio = block_elements(pruned_decoder) / block_elements(whole_decoder)
    return {"true_ratio": ratio, "kept_layers": pruned_decoder.config.layers}
