"""LLM-Pruner as a service (ElastiLM 5.1): every switch copies the level's weights into a new layout.

Owns its levels and their costs. Must not know any other service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from repro.core.registry import register
from repro.methods.compression.base import Compression
from repro.methods.compression.pruning import llm_pruner
from repro.methods.elastilm.elastic_levels import sizes_at
from repro.methods.elastilm.uneven_cost import config_of_shape, sub_cost
from repro.methods.serving.service import NO_FAMILY, Service, System
from repro.methods.serving.slo import LEVELS
from repro.methods.serving.switching import RELAYOUTS, Relayout
from repro.models.costs.model_cost import ModelCost


@register("service", "llm_pruner")
@dataclass(frozen=True)
class LLMPrunerService(Service):
    """Uniform pruning of all layers, without anchors; trained adapters are merged.

    Deviation: the paper says only that the baseline needs no more memory than others; here matrices are
    copied one by one through a buffer for the largest.

    Attributes:
        relayout: speed of the copy, a key of `switching.RELAYOUTS`: `dram`, or fitted to the paper's time
            of one matrix (`paper`) or of a switch while serving (`served`).
    """

    relayout: Literal["dram", "paper", "served"] = "dram"

    def system(self, full: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """See `Service`."""
        config, shape = config_of_shape(full.shape), full.shape
        model_costs = {
            level: sub_cost(full, sizes_at(config, level, ()), with_adapters=False) for level in LEVELS
        }
        largest = shape.hidden * max(shape.intermediate, shape.heads * shape.head_dim)
        weights = full.model_bytes + full.weight_bytes(largest)
        fetched, fitted = RELAYOUTS[self.relayout]
        return System(model_costs, full, Relayout(fetched), weights, fitted=fitted)

    def compression(self, level: float) -> Compression | None:
        """See `Service`."""
        return None if level == 1.0 else llm_pruner.LLMPruner(level)
