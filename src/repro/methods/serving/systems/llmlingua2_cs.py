"""LLMLingua-2 with contextual sparsity as a service (ElastiLM 5.1): prompts shrink, and so do decode steps.

Owns its levels and the cost of a sparse step. Must not know any other service, nor how prompts are scored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from repro.core.errors import InputError
from repro.core.registry import register
from repro.methods.compression.base import Compression
from repro.methods.compression.pruning.contextual_sparsity import ContextualSparsity
from repro.methods.serving.llmlingua2 import MODEL_COST
from repro.methods.serving.slo import LEVELS
from repro.methods.serving.switching import Nothing
from repro.methods.serving.systems.base import NO_FAMILY, Service, System
from repro.models.costs.model_cost import ModelCost
from repro.models.elastic.uneven_cost import UnevenCost


@register("service", "llmlingua2_cs")
@dataclass(frozen=True)
class LLMLingua2CSService(Service):
    """Prompts of all levels, read by the whole model; a level is the share of neurons that a step computes.

    A prompt's tokens together want nearly all neurons, so that reading it is not made faster; attention is
    whole, and predictors are read in every step (ElastiLM 5.2).

    Attributes:
        rank: of the predictors.
        efficiency: of kernels over chosen neurons, as a share of a dense one's rate. The default is generous:
            the paper names "degraded performance of sparse kernels", and no number.
    """

    scorer: str = "llmlingua2"
    rank: int = 128
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        """See `Service`."""
        super().__post_init__()
        if not 0.0 < self.efficiency <= 1.0:
            raise InputError(f"service.efficiency is {self.efficiency}; it must be above 0 and at most 1")
        if self.rank < 1:
            raise InputError(f"service.rank is {self.rank}; it must be at least 1")

    def system(self, full: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """See `Service`."""
        steps = {level: self._step(full, level) for level in LEVELS if level < 1.0}
        scorer = MODEL_COST.model_bytes if self.scorer == "llmlingua2" else 0.0
        weights = full.model_bytes + full.weight_bytes(self._predictors(full)) + scorer
        return System(dict.fromkeys(LEVELS, full), full, Nothing(), weights, LEVELS, steps)

    def compression(self, level: float) -> Compression | None:
        """See `Service`."""
        return None if level == 1.0 else ContextualSparsity(level, self.rank)

    def _predictors(self, full: ModelCost) -> int:
        """Weights of all layers' predictors."""
        shape = full.shape
        return shape.layers * self.rank * (shape.hidden + shape.intermediate)

    def _step(self, full: ModelCost, level: float) -> UnevenCost:
        """The cost of a pass over one token: neurons for as long as sparse kernels take, all at most."""
        shape = full.shape
        chosen = max(1, round(level * shape.intermediate))
        neurons = min(shape.intermediate, math.ceil(round(chosen / self.efficiency, 6)))
        blocks = (replace(shape, intermediate=neurons),) * shape.layers
        return UnevenCost(shape, full.stored, blocks, self._predictors(full))
