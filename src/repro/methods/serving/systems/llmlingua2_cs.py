"""LLMLingua-2 with contextual sparsity as a service (ElastiLM 5.1): short prompts and sparse decode steps.

Owns its levels and the cost of a sparse step. Must not know any other service or how prompts are scored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Interval

from repro.core.bounds import Part
from repro.core.registry import register
from repro.methods.compression.base import Compression
from repro.methods.compression.pruning.contextual_sparsity import ContextualSparsity
from repro.methods.elastilm.uneven_cost import UnevenCost
from repro.methods.serving import llmlingua2
from repro.methods.serving.service import NO_FAMILY, Scorer, Service, System
from repro.methods.serving.slo import LEVELS
from repro.methods.serving.switching import Nothing
from repro.models.costs.model_cost import ModelCost


@register("service", "llmlingua2_cs")
@dataclass(frozen=True)
class LLMLingua2CSService(Service):
    """Prefill with the whole model; the model level is the share of neurons that a decode step computes.

    Prefill is not accelerated, since a prompt's tokens together activate nearly all neurons. Attention is
    dense, and predictors are read in every step (ElastiLM 5.2).

    Attributes:
        rank: rank of the predictors.
        efficiency: rate of sparse kernels relative to dense ones. The default 1 is optimistic: the paper
            mentions "degraded performance of sparse kernels" without a number.
    """

    scorer: Scorer = "llmlingua2"
    rank: Annotated[int, Interval(ge=1, le=65_536)] = 128
    efficiency: Part = 1.0

    def system(self, full: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """See `Service`."""
        steps = {level: self._step(full, level) for level in LEVELS if level < 1.0}
        scorer = llmlingua2.model_cost(full.stored).model_bytes if self.scorer == "llmlingua2" else 0.0
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
        """Cost of a decode step: chosen neurons over the efficiency, at most all."""
        shape = full.shape
        active = max(1, round(level * shape.intermediate))
        neurons = min(shape.intermediate, math.ceil(round(active / self.efficiency, 6)))
        blocks = (replace(shape, intermediate=neurons),) * shape.layers
        return UnevenCost(shape, full.stored, blocks, self._predictors(full))
