"""LLM-Drop as a service (ElastiLM 5.1): levels skip attention blocks and MLPs; switching is free.

Owns its levels and their costs. Must not know any other service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from repro.core.registry import register
from repro.methods.compression.base import Compression
from repro.methods.compression.pruning import attn_drop
from repro.methods.elastilm.submodels import LayerSizes
from repro.methods.elastilm.uneven_cost import UnevenCost, sub_cost
from repro.methods.serving.service import NO_FAMILY, Service, System
from repro.methods.serving.slo import LEVELS
from repro.methods.serving.switching import Nothing
from repro.models.costs.model_cost import ModelCost, Shape


@register("service", "attn_drop")
@dataclass(frozen=True)
class AttnDropService(Service):
    """All layers are in memory; a level runs at most its share of weights, dropping attention first.

    The cost of a level depends only on the number of dropped halves.
    """

    def system(self, full: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """See `Service`."""
        model_costs = {level: _model_cost(full, level) for level in LEVELS}
        return System(model_costs, full, Nothing(), full.model_bytes)

    def compression(self, level: float) -> Compression | None:
        """See `Service`."""
        return None if level == 1.0 else attn_drop.AttnDrop(level)


def halves_at(shape: Shape, level: float) -> tuple[int, int]:
    """Numbers of attention blocks and MLPs at a level, as `compression.attn_drop` keeps of equal layers."""
    attention = mlps = shape.layers
    remaining = total = shape.layers * shape.layer_weights
    while remaining > level * total and attention + mlps > 1:
        if attention:
            attention -= 1
            remaining -= shape.attention_weights
        else:
            mlps -= 1
            remaining -= shape.mlp_weights
    return attention, mlps


def _model_cost(full: ModelCost, level: float) -> UnevenCost:
    shape = full.shape
    attention, mlps = halves_at(shape, level)
    layers = max(attention, mlps)  # a dropped MLP removes its layer: its attention went before
    units = (shape.kv_heads,) * attention + (0,) * (layers - attention)
    smaller = replace(full, shape=replace(shape, layers=layers))
    return sub_cost(smaller, LayerSizes(units, (shape.intermediate,) * layers), with_adapters=False)
