"""Units and neurons that each layer keeps at a level, and the anchor layers that are locked (ElastiLM 3.2).

Owns the formulas of both. Must not know how units are ranked.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Annotated, Literal

from annotated_types import Interval

from repro.core.errors import InputError
from repro.methods.elastilm.submodels import LayerSizes, neuron_parameters, unit_parameters
from repro.models.transformer.config import DecoderConfig

Anchors = Annotated[float, Interval(ge=0, lt=1)]
"""A share of layers, not all of them."""

Rule = Literal["paper", "release"]

TILE = 32
"""Minimum neurons that a layer keeps by rule `paper`: a tile of the kernels."""


def anchors_of(losses: Sequence[float], share: float) -> tuple[int, ...]:
    """The layers whose removal gives the largest loss (ElastiLM 3.2), in ascending order.

    Args:
        losses: loss without each layer in turn.
        share: share of the layers that are anchors; rounded, at least one layer unless 0.
    """
    count = max(1, round(share * len(losses))) if share else 0
    return tuple(sorted(sorted(range(len(losses)), key=losses.__getitem__)[len(losses) - count :]))


def sizes_at(
    config: DecoderConfig, level: float, locked: Collection[int], rule: Rule = "paper"
) -> LayerSizes:
    """Number of units and neurons that each layer keeps; locked layers keep all.

    Args:
        config: configuration of the whole model.
        level: share of all blocks' weights to keep.
        locked: layers that are not pruned.
        rule: `paper` prunes the other layers so that the whole model has the level's share; `release` keeps
            1.25 level - 0.25 of each other layer (10% up to level 0.2), as its scripts, whatever is locked.

    Deviation: the paper prunes attention heads and neurons of a layer at one ratio. Small models have two or
    three attention units per layer, so rule `paper` rounds their number and compensates with neurons. The
    paper's own example (32 layers, level 0.5) prints 37.5% of a free layer, which `release` gives; `paper`
    gives 38.5%.

    Raises:
        InputError: unknown locked layers, or no layer left to prune.
    """
    elastic_count = len(set(range(config.layers)).difference(locked))
    if not elastic_count or elastic_count != config.layers - len(set(locked)):
        raise InputError(
            f"layers {list(locked)} are locked of {config.layers}; leave one of them to be elastic"
        )
    if level == 1.0:
        return LayerSizes.full(config)
    if rule == "release":
        size = _release_size(config, 1.25 * level - 0.25 if level > 0.2 else 0.1)
    else:
        size = _paper_size(config, max(0.0, (level * config.layers - len(set(locked))) / elastic_count))
    full_size = (config.kv_heads, config.intermediate)
    units, neurons = zip(*[full_size if i in locked else size for i in range(config.layers)], strict=True)
    return LayerSizes(units, neurons)


def _paper_size(config: DecoderConfig, keep: float) -> tuple[int, int]:
    """Attention units rounded to nearest; neurons fill the rest of the layer's share."""
    unit_count = max(1, math.floor(keep * config.kv_heads + 0.5))
    weights = config.kv_heads * unit_parameters(config) + config.intermediate * neuron_parameters(config)
    neurons = (keep * weights - unit_count * unit_parameters(config)) / neuron_parameters(config)
    return unit_count, min(config.intermediate, max(TILE, math.floor(round(neurons, 6))))


def _release_size(config: DecoderConfig, keep: float) -> tuple[int, int]:
    """Attention units rounded up and neurons down."""
    # Rounding to six decimals removes floating-point error next to whole numbers.
    unit_count = math.ceil(round(keep * config.kv_heads, 6))
    return max(1, unit_count), max(1, math.floor(round(keep * config.intermediate, 6)))
