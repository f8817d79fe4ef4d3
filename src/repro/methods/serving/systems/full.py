"""The whole model as a service, without elasticity.

Must not know any other service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from repro.core.registry import register
from repro.methods.serving.service import NO_FAMILY, Service, System
from repro.methods.serving.switching import Nothing
from repro.models.costs.model_cost import ModelCost


@register("service", "full")
@dataclass(frozen=True)
class FullService(Service):
    """One level: whole model and whole prompt; meets only SLOs whose shares are all 1."""

    def system(self, cost: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """See `Service`."""
        return System({1.0: cost}, cost, Nothing(), cost.model_bytes)
