"""The level of a model made smaller: which share of its blocks' matrices may stay.

Owns the check of a level, how many whole layers it leaves, and what is said of what stayed. Must not know
how anything is ranked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from repro.core.errors import InputError
from repro.models.analysis.layer_dropping import block_elements, of_layers
from repro.models.transformer.decoder import Decoder


def checked(level: float) -> float:
    """A level, if it is one.

    Raises:
        InputError: it is not above 0 and at most 1.
    """
    if not 0.0 < level <= 1.0:
        raise InputError(f"compression.level is {level}; it must be above 0 and at most 1")
    return level


def layers_at(level: float, layers: int) -> int:
    """How many of so many equal layers a level leaves: its share rounded down, and never none."""
    # Ten decimals, since 0.7 times 10 is less than 7 in binary.
    return max(1, math.floor(round(checked(level) * layers, 10)))


def most_important(decoder: Decoder, worth: Sequence[float], level: float) -> Decoder:
    """A decoder without its least important layers; of equals the later ones stay.

    Args:
        decoder: the whole.
        worth: of each layer, larger for one that is needed more.
        level: the share of layers that may stay.
    """
    count = decoder.config.layers
    ranked = sorted(range(count), key=worth.__getitem__)
    return of_layers(decoder, sorted(ranked[count - layers_at(level, count) :]))


def figures_of(made: Decoder, whole: Decoder) -> dict[str, float]:
    """Which share of the whole's matrices stayed, and how many layers."""
    ratio = block_elements(made) / block_elements(whole)
    return {"true_ratio": ratio, "kept_layers": made.config.layers}
