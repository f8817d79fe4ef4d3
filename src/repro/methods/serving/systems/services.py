"""The services that ElastiLM is compared with (5.1), and the whole model without elasticity.

Owns the levels of each, their costs and their memory. Must not know how a level's model is made, or how
prompts are scored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from repro.core.bounds import Part
from repro.core.errors import InputError
from repro.core.registry import register
from repro.methods.compression.base import Compression
from repro.methods.compression.pruning.attn_drop import AttnDrop
from repro.methods.compression.pruning.contextual_sparsity import ContextualSparsity
from repro.methods.compression.pruning.laco import Laco
from repro.methods.compression.pruning.llm_pruner import LLMPruner
from repro.methods.compression.pruning.whole_layers import Layerwise, ShortGpt
from repro.methods.elastilm.elastic_levels import sizes_at
from repro.methods.elastilm.submodels import LayerSizes
from repro.methods.elastilm.uneven_cost import UnevenCost, config_of_shape, sub_cost
from repro.methods.serving import llmlingua2
from repro.methods.serving.service import NO_FAMILY, Scorer, Service, System, by_layers
from repro.methods.serving.slo import LEVELS
from repro.methods.serving.switching import RELAYOUTS, Nothing, Relayout, Swap, Switching
from repro.models.costs.model_cost import ModelCost, Shape


@register("service", "full")
@dataclass(frozen=True)
class FullService(Service):
    """One level: whole model and whole prompt; meets only SLOs whose shares are all 1."""

    def system(self, full_cost: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """See `Service`."""
        return System({1.0: full_cost}, full_cost, Nothing(), full_cost.model_bytes)


@dataclass(frozen=True)
class PrunedService(Service):
    """A service whose levels are made of the whole model by a pruning, which takes the level."""

    pruning: ClassVar[type]

    def compression(self, level: float) -> Compression | None:
        """See `Service`."""
        pruning: Compression | None = None if level == 1.0 else self.pruning(level)
        return pruning


@register("service", "layerwise")
@dataclass(frozen=True)
class LayerwiseService(PrunedService):
    """All layers are in memory; a level runs those whose removal raises the loss most."""

    pruning: ClassVar[type] = Layerwise

    def system(self, full_cost: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """See `Service`."""
        return System(by_layers(full_cost), full_cost, Nothing(), full_cost.model_bytes)


@register("service", "shortgpt")
@dataclass(frozen=True)
class ShortGptService(LayerwiseService):
    """All layers are in memory; a level runs those that change hidden states most."""

    pruning: ClassVar[type] = ShortGpt


@register("service", "attn_drop")
@dataclass(frozen=True)
class AttnDropService(PrunedService):
    """All layers are in memory; a level runs at most its share of weights, dropping attention first.

    The cost of a level depends only on the number of dropped halves.
    """

    pruning: ClassVar[type] = AttnDrop

    def system(self, full_cost: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """See `Service`."""
        model_costs = {level: _dropped_cost(full_cost, level) for level in LEVELS}
        return System(model_costs, full_cost, Nothing(), full_cost.model_bytes)


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


def _dropped_cost(full_cost: ModelCost, level: float) -> UnevenCost:
    shape = full_cost.shape
    attention, mlps = halves_at(shape, level)
    layer_count = max(attention, mlps)  # a dropped MLP removes its layer: its attention went before
    units = (shape.kv_heads,) * attention + (0,) * (layer_count - attention)
    smaller = replace(full_cost, shape=replace(shape, layers=layer_count))
    return sub_cost(smaller, LayerSizes(units, (shape.intermediate,) * layer_count), with_adapters=False)


@register("service", "laco")
@dataclass(frozen=True)
class LacoService(PrunedService):
    """Levels share only the embeddings; switching to a level reads its layers from flash.

    Attributes:
        ideal: layers of all levels are in memory and switching is free (Fig. 16a).
    """

    pruning: ClassVar[type] = Laco

    ideal: bool = False

    def system(self, full_cost: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """See `Service`."""
        model_costs = by_layers(full_cost)
        sizes = [model_cost.shape.layers * model_cost.layer_bytes for model_cost in model_costs.values()]
        switching: Switching = Nothing() if self.ideal else Swap(tables=False)
        weights = full_cost.table_bytes + (sum(sizes) if self.ideal else max(sizes))
        return System(model_costs, full_cost, switching, weights)


@register("service", "llm_pruner")
@dataclass(frozen=True)
class LLMPrunerService(PrunedService):
    """Uniform pruning of all layers, without anchors; trained adapters are merged.

    Deviation: the paper says only that the baseline needs no more memory than others; here matrices are
    copied one by one through a buffer for the largest.

    Attributes:
        relayout: speed of the copy, a key of `switching.RELAYOUTS`: `dram`, or fitted to the paper's time
            of one matrix (`paper`) or of a switch while serving (`served`).
    """

    pruning: ClassVar[type] = LLMPruner

    relayout: Literal["dram", "paper", "served"] = "dram"

    def system(self, full_cost: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """See `Service`."""
        config, shape = config_of_shape(full_cost.shape), full_cost.shape
        model_costs = {
            level: sub_cost(full_cost, sizes_at(config, level, ()), with_adapters=False) for level in LEVELS
        }
        largest = shape.hidden * max(shape.intermediate, shape.heads * shape.head_dim)
        weights = full_cost.model_bytes + full_cost.weight_bytes(largest)
        fetched, fitted = RELAYOUTS[self.relayout]
        return System(model_costs, full_cost, Relayout(fetched), weights, fitted=fitted)


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

    def system(self, full_cost: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """See `Service`."""
        steps = {level: self._step(full_cost, level) for level in LEVELS if level < 1.0}
        scorer = llmlingua2.model_cost(full_cost.stored).model_bytes if self.scorer == "llmlingua2" else 0.0
        weights = full_cost.model_bytes + full_cost.weight_bytes(self._predictors(full_cost)) + scorer
        return System(dict.fromkeys(LEVELS, full_cost), full_cost, Nothing(), weights, LEVELS, steps)

    def compression(self, level: float) -> Compression | None:
        """See `Service`."""
        return None if level == 1.0 else ContextualSparsity(level, self.rank)

    def _predictors(self, full_cost: ModelCost) -> int:
        """Weights of all layers' predictors."""
        shape = full_cost.shape
        return shape.layers * self.rank * (shape.hidden + shape.intermediate)

    def _step(self, full_cost: ModelCost, level: float) -> UnevenCost:
        """Cost of a decode step: chosen neurons over the efficiency, at most all."""
        shape = full_cost.shape
        active_count = max(1, round(level * shape.intermediate))
        neuron_count = min(shape.intermediate, math.ceil(round(active_count / self.efficiency, 6)))
        blocks = (replace(shape, intermediate=neuron_count),) * shape.layers
        return UnevenCost(shape, full_cost.stored, blocks, self._predictors(full_cost))


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

    def system(self, full_cost: ModelCost, family: Mapping[str, ModelCost] = NO_FAMILY) -> System:
        """See `Service`; InputError for a family without models."""
        if not family:
            raise InputError(
                f"pfs serves with a family of models: {', '.join(self.family)}; give their costs"
            )
        models = {
            model_cost.shape.parameters / full_cost.shape.parameters: name
            for name, model_cost in family.items()
        }
        model_costs = {level: family[name] for level, name in models.items()}
        sizes = [model_cost.model_bytes for model_cost in model_costs.values()]
        switching: Switching = Nothing() if self.ideal else Swap()
        weight_bytes = sum(sizes) if self.ideal else max(sizes)
        return System(model_costs, full_cost, switching, weight_bytes, models=models)
