"""How much of each layer a level of a model keeps, and which layers are locked.

Owns the two formulas. Must not know how units are ranked.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from repro.core.errors import InputError
from repro.methods.compression.pruning.level import checked
from repro.models.elastic.submodels import Kept, neuron_parameters, unit_parameters
from repro.models.transformer.config import DecoderConfig

RULES = ("paper", "release")

TILE = 32
"""Neurons that a layer keeps at least: a row of vectors that kernels multiply together."""


def anchors_of(losses: Sequence[float], share: float) -> tuple[int, ...]:
    """The layers without which the loss is largest (ElastiLM 3.2), in ascending order.

    Args:
        losses: with each layer in turn left out.
        share: of all layers; rounded, and at least one unless it is 0.

    Raises:
        InputError: a share that leaves no layer to be elastic.
    """
    if not 0.0 <= share < 1.0:
        raise InputError(
            f"compression.anchors is {share}; it must be a share of the layers from 0 to below 1"
        )
    count = max(1, round(share * len(losses))) if share else 0
    return tuple(sorted(sorted(range(len(losses)), key=losses.__getitem__)[len(losses) - count :]))


def kept_at(config: DecoderConfig, level: float, locked: Collection[int], rule: str = "paper") -> Kept:
    """How many units and neurons each layer keeps; locked layers keep all.

    Args:
        config: of the whole.
        level: the share of all blocks' weights that may stay.
        locked: layers that are left whole.
        rule: `paper` so much of each other layer that the whole has the level's share; `release` what its
            scripts do, 1.25 level - 0.25, and 10% at level 0.2, whatever is locked.

    Deviation: the paper gives attention heads and neurons of a layer one ratio. A small model has two or
    three attention units a layer, so by rule `paper` their number is rounded and neurons make up for it.

    Raises:
        InputError: an impossible level, an unknown rule, or every layer is locked.
    """
    checked(level)
    if rule not in RULES:
        raise InputError(f"compression.rule is {rule!r}; choose from {', '.join(RULES)}")
    free = len(set(range(config.layers)).difference(locked))
    if not free or free != config.layers - len(set(locked)):
        raise InputError(
            f"layers {list(locked)} are locked of {config.layers}; leave one of them to be elastic"
        )
    if level == 1.0:
        return Kept.whole(config)
    if rule == "release":
        units, neurons = _released(config, 1.25 * level - 0.25 if level > 0.2 else 0.1)
    else:
        units, neurons = _filled(config, max(0.0, (level * config.layers - len(set(locked))) / free))
    whole = (config.kv_heads, config.intermediate)
    pairs = [whole if i in locked else (units, neurons) for i in range(config.layers)]
    return Kept(tuple(one for one, _ in pairs), tuple(one for _, one in pairs))


def _filled(config: DecoderConfig, keep: float) -> tuple[int, int]:
    """Attention units to the nearest, and neurons for what is left of the layer's share."""
    units = max(1, math.floor(keep * config.kv_heads + 0.5))
    whole = config.kv_heads * unit_parameters(config) + config.intermediate * neuron_parameters(config)
    left = (keep * whole - units * unit_parameters(config)) / neuron_parameters(config)
    return units, min(config.intermediate, max(TILE, math.floor(round(left, 6))))


def _released(config: DecoderConfig, keep: float) -> tuple[int, int]:
    """Attention units rounded up and neurons down."""
    # Six decimals, since products of such shares come out just beside whole numbers in binary.
    units = math.ceil(round(keep * config.kv_heads, 6))
    return max(1, units), max(1, math.floor(round(keep * config.intermediate, 6)))
