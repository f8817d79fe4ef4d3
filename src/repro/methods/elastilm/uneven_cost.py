"""Cost of a sub-model whose layers differ in heads and neurons and may have LoRA adapters.

Owns that `ModelCost`. Must not know why a layer keeps its units.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

from repro.core.errors import InputError
from repro.methods.elastilm.lora import RANK, shapes
from repro.methods.elastilm.submodels import LayerSizes
from repro.models.costs.model_cost import ModelCost, Shape
from repro.models.transformer.config import DecoderConfig


@dataclass(frozen=True)
class UnevenCost(ModelCost):
    """Cost by the actual parameters of each layer.

    Exact for an op over all layers, as with a fully resident model; a part of the layers costs its share of
    the mean.

    Attributes:
        blocks: shape of each layer; `shape` is the whole model's and gives the cost of the tables.
        adapters: weights of all LoRA adapters, at the stored precision.
    """

    blocks: tuple[Shape, ...] = ()
    adapters: int = 0

    def __post_init__(self) -> None:
        if len(self.blocks) != self.shape.layers or self.shape.encoder or self.shape.medusa:
            raise InputError(
                f"{len(self.blocks)} layers are billed one by one, of a decoder that has {self.shape.layers}"
            )

    @cached_property
    def _kinds(self) -> tuple[tuple[ModelCost, int], ...]:
        """Each distinct layer shape and its count."""
        return tuple((ModelCost(shape, self.stored), count) for shape, count in Counter(self.blocks).items())

    @property
    def block_bytes(self) -> float:
        """Bytes of all layers without adapters."""
        return sum(count * model_cost.layer_bytes for model_cost, count in self._kinds)

    @property
    def adapter_bytes(self) -> float:
        """Bytes of all adapters."""
        return self.weight_bytes(self.adapters)

    @property
    def layer_bytes(self) -> float:
        """See `ModelCost`; mean over the layers."""
        return (self.block_bytes + self.adapter_bytes) / self.shape.layers

    @property
    def model_bytes(self) -> float:
        """See `ModelCost`."""
        return self.table_bytes + self.block_bytes + self.adapter_bytes

    def cache_bytes(self, token_count: int) -> float:
        """See `ModelCost`; counts the key-value heads of each layer."""
        element_count = sum(
            count * model_cost.shape.cache_elements(token_count) for model_cost, count in self._kinds
        )
        return element_count * self.stored.activation

    def layers(
        self,
        layer_count: int,
        row_count: int,
        context_length: float,
        prompt_length: int = 0,
        is_first: bool = False,
    ) -> tuple[float, float]:
        """See `ModelCost`."""
        parts = [
            model_cost.layers(number, row_count, context_length, prompt_length, is_first)
            for model_cost, number in self._kinds
        ]
        flops = sum(part[0] for part in parts) + 2.0 * row_count * self.adapters
        moved_bytes = sum(part[1] for part in parts) + self.adapter_bytes
        share = layer_count / self.shape.layers
        return share * flops, share * moved_bytes

    def attention_flops(self, layer_count: int, row_count: int, context_length: float) -> float:
        """See `ModelCost`; each layer has its own heads."""
        flops = sum(
            number * cost.shape.attention_flops(row_count, context_length) for cost, number in self._kinds
        )
        return layer_count / self.shape.layers * flops


def config_of_shape(shape: Shape) -> DecoderConfig:
    """A decoder configuration from a shape; `max_positions` is 0."""
    return DecoderConfig(
        vocab=shape.vocab,
        hidden=shape.hidden,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate=shape.intermediate,
        max_positions=0,
        gated=shape.gated,
        tied=shape.tied,
    )


def sub_cost(cost: ModelCost, sizes: LayerSizes, with_adapters: bool = True) -> UnevenCost:
    """Cost of a sub-model.

    Args:
        cost: cost of the whole decoder.
        sizes: units and neurons of each layer; 0 units means no attention, 0 neurons no MLP.
        with_adapters: count rank-8 adapters on all matrices; the whole model has none.

    Raises:
        InputError: `sizes` has another number of layers than the decoder.
    """
    shape = cost.shape
    groups = shape.heads // shape.kv_heads
    blocks = tuple(
        _block(shape, unit_count * groups, unit_count, neuron_count)
        for unit_count, neuron_count in zip(sizes.units, sizes.neurons, strict=True)
    )
    config = config_of_shape(shape)
    adapter_weights = 0
    if with_adapters and sizes != LayerSizes.full(config):
        adapter_weights = sum(RANK * (inputs + outputs) for inputs, outputs in shapes(config, sizes).values())
    return UnevenCost(shape, cost.stored, blocks, adapter_weights)


def _block(shape: Shape, head_count: int, kv_head_count: int, neuron_count: int) -> Shape:
    if not kv_head_count:  # one head of size 0, since kv_heads must divide heads
        return replace(shape, heads=1, kv_heads=1, head_dim=0, intermediate=neuron_count)
    return replace(shape, heads=head_count, kv_heads=kv_head_count, intermediate=neuron_count)
