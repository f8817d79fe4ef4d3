"""Models trained from scratch (PFS) as a service (ElastiLM 5.1): each level is a separate model.

Owns the family and its memory. Must not know any other service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from repro.core.errors import InputError
from repro.core.registry import register
from repro.methods.serving.service import NO_FAMILY, Service, System
from repro.methods.serving.switching import Nothing, Swap, Switching
from repro.models.costs.model_cost import ModelCost


@register("service", "pfs")
@dataclass(frozen=True)
class PfsService(Service):
    """OPT models up to 6.7B; a level is a model's parameters as a share of the target's.

    The target itself never serves; SLOs are relative to its costs.

    Attributes:
        ideal: all models are in memory and switching is free (Fig. 16a); otherwise a switch reads the model
            from flash.
    """

    ideal: bool = False

    family: ClassVar[tuple[str, ...]] = (
        "opt_125m_fp16",
        "opt_350m_fp16",
        "opt_1_3b_fp16",
        "opt_2_7b_fp16",
        "opt_6_7b_fp16",
    )

    def system(self, cost: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """See `Service`; InputError for a family without models."""
        if not family:
            raise InputError(
                f"pfs serves with a family of models: {', '.join(self.family)}; give their costs"
            )
        models = {
            model_cost.shape.parameters / cost.shape.parameters: name for name, model_cost in family.items()
        }
        model_costs = {level: family[name] for level, name in models.items()}
        sizes = [model_cost.model_bytes for model_cost in model_costs.values()]
        switching: Switching = Nothing() if self.ideal else Swap()
        weights = sum(sizes) if self.ideal else max(sizes)
        return System(model_costs, cost, switching, weights, models=models)
