"""LaCo as a service (ElastiLM 5.1): levels of merged layers, which levels do not share.

Owns its levels and their memory. Must not know any other service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from repro.core.registry import register
from repro.methods.compression.base import Compression
from repro.methods.compression.pruning import laco
from repro.methods.serving.service import NO_FAMILY, Service, System, by_layers
from repro.methods.serving.switching import Nothing, Swap, Switching
from repro.models.costs.model_cost import ModelCost


@register("service", "laco")
@dataclass(frozen=True)
class LacoService(Service):
    """Levels share only the embeddings; switching to a level reads its layers from flash.

    Attributes:
        ideal: layers of all levels are in memory and switching is free (Fig. 16a).
    """

    ideal: bool = False

    def system(self, cost: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """See `Service`."""
        model_costs = by_layers(cost)
        sizes = [model_cost.shape.layers * model_cost.layer_bytes for model_cost in model_costs.values()]
        switching: Switching = Nothing() if self.ideal else Swap(tables=False)
        weights = cost.table_bytes + (sum(sizes) if self.ideal else max(sizes))
        return System(model_costs, cost, switching, weights)

    def compression(self, level: float) -> Compression | None:
        """See `Service`."""
        return None if level == 1.0 else laco.Laco(level)
