"""ElastiLM as a service: sub-models switched by pointers, prompt compression, a TLM that decides.

Owns its levels and their costs. Must not know any other service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from repro.core.registry import register
from repro.methods.compression.base import Compression
from repro.methods.elastilm.compression import ElastiLM
from repro.methods.elastilm.elastic_levels import Anchors, Rule, sizes_at
from repro.methods.elastilm.elastication import UnitOrder
from repro.methods.elastilm.uneven_cost import config_of_shape, sub_cost
from repro.methods.serving.service import NO_FAMILY, Decider, Scorer, Service, System, levels_by
from repro.methods.serving.switching import POINTERS, Pointer
from repro.models.costs.model_cost import ModelCost

HEADS = 36 * 835_584 + 384 * 512 + 30_522 * 128 + 514 * 512
"""Weights of the dual-head TLM at MobileBERT's size, see `score_head.MODEL_COSTS`."""


@register("service", "elastilm")
@dataclass(frozen=True)
class ElastiLMService(Service):
    """Levels share the whole model's weights; each level has separate adapters (ElastiLM 3).

    The cost of a level depends only on the number of locked layers.

    Attributes:
        anchors: see `ElastiLM`.
        rule: see `ElastiLM`.
        step: step between levels of the model and of the prompt (5.5 also uses 0.05 and 0.2).
        lora: count the cost of adapters at every level, and attach those that were trained.
        order: see `ElastiLM`; `none` is the ablation without reordering.
        pointer: cost of moving a pointer, a key of `switching.POINTERS`: `launch`; `matrix`, fitted to the
            paper's 2 ms a matrix; or `served`, fitted to its switching time while serving.
    """

    decider: Decider = "decision_head"
    scorer: Scorer = "score_head"
    anchors: Anchors = 0.2
    rule: Rule = "paper"
    step: float = 0.1
    lora: bool = True
    order: UnitOrder = "committed"
    pointer: Literal["launch", "matrix", "served"] = "launch"

    def __post_init__(self) -> None:
        """InputError for a step that does not reach 1."""
        levels_by(self.step)  # which validates it

    def system(self, full: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """See `Service`."""
        config, levels = config_of_shape(full.shape), levels_by(self.step)
        locked = range(max(1, round(self.anchors * config.layers)) if self.anchors else 0)
        model_costs = {
            level: sub_cost(full, sizes_at(config, level, locked, self.rule), with_adapters=self.lora)
            for level in levels
        }
        extra_bytes = sum(model_cost.adapter_bytes for model_cost in model_costs.values())
        if self.decider == "decision_head" or self.scorer == "score_head":
            extra_bytes += full.weight_bytes(HEADS)
        launches, fitted = POINTERS[self.pointer]
        return System(
            model_costs, full, Pointer(launches), full.model_bytes + extra_bytes, levels, fitted=fitted
        )

    def compression(self, level: float) -> Compression | None:
        """See `Service`."""
        if level == 1.0:
            return None
        return ElastiLM(level, self.anchors, self.rule, self.order, lora=self.lora)
