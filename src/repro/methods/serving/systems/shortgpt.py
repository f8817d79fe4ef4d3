"""ShortGPT as a service (ElastiLM 5.1): levels skip whole layers; switching is free.

Owns its levels. Must not know any other service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from repro.core.registry import register
from repro.methods.compression.base import Compression
from repro.methods.compression.pruning import shortgpt
from repro.methods.serving.service import NO_FAMILY, Service, System, by_layers
from repro.methods.serving.switching import Nothing
from repro.models.costs.model_cost import ModelCost


@register("service", "shortgpt")
@dataclass(frozen=True)
class ShortGptService(Service):
    """All layers are in memory; a level runs those that change hidden states most."""

    def system(self, cost: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """See `Service`."""
        return System(by_layers(cost), cost, Nothing(), cost.model_bytes)

    def compression(self, level: float) -> Compression | None:
        """See `Service`."""
        return None if level == 1.0 else shortgpt.ShortGpt(level)
