"""What a sub-model costs whose layers have unequal numbers of heads and neurons, and adapters beside them.

Owns that cost, which an engine takes like any other. Must not know why a layer keeps what it keeps.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

from repro.core.errors import InputError
from repro.models.costs.model_cost import ModelCost, Shape
from repro.models.elastic.lora import RANK, shapes
from repro.models.elastic.submodels import Kept
from repro.models.transformer.config import DecoderConfig


@dataclass(frozen=True)
class UnevenCost(ModelCost):
    """Costs by true parameters, layer by layer.

    An engine that keeps all layers in memory runs them as one op, whose FLOPs and bytes are then exact; of a
    run of some layers it is billed the layers' mean.

    Attributes:
        blocks: the shape of each layer; `shape` is the whole model's, which the tables are billed by.
        adapters: weights of all low-rank adapters, stored like the rest.
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
        """Each kind of layer, and how many there are."""
        return tuple((ModelCost(shape, self.stored), count) for shape, count in Counter(self.blocks).items())

    @property
    def block_bytes(self) -> float:
        """Bytes of all layers, adapters left out."""
        return sum(count * model_cost.layer_bytes for model_cost, count in self._kinds)

    @property
    def adapter_bytes(self) -> float:
        """Bytes of all adapters."""
        return self.weight_bytes(self.adapters)

    @property
    def layer_bytes(self) -> float:
        """See `ModelCost`; of the mean layer."""
        return (self.block_bytes + self.adapter_bytes) / self.shape.layers

    @property
    def model_bytes(self) -> float:
        """See `ModelCost`."""
        return self.table_bytes + self.block_bytes + self.adapter_bytes

    def cache_bytes(self, tokens: int) -> float:
        """See `ModelCost`; what the layers' own heads need."""
        elements = sum(count * model_cost.shape.cache_elements(tokens) for model_cost, count in self._kinds)
        return elements * self.stored.activation

    def layers(
        self, count: int, rows: int, context: float, source: int = 0, first: bool = False
    ) -> tuple[float, float]:
        """See `ModelCost`."""
        parts = [
            model_cost.layers(number, rows, context, source, first) for model_cost, number in self._kinds
        ]
        flops = sum(part[0] for part in parts) + 2.0 * rows * self.adapters
        moved = sum(part[1] for part in parts) + self.adapter_bytes
        share = count / self.shape.layers
        return share * flops, share * moved


def config_of_shape(shape: Shape) -> DecoderConfig:
    """As much of a decoder's configuration as a shape says; positions are not limited by it."""
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


def sub_cost(whole: ModelCost, kept: Kept, adapted: bool = True) -> UnevenCost:
    """What a sub-model costs.

    Args:
        whole: the decoder's.
        kept: of each of its layers; one without any unit has no attention, one without neurons no MLP.
        adapted: with adapters of rank 8 beside all matrices; the whole model has none.

    Raises:
        InputError: it keeps another number of layers than there are.
    """
    shape = whole.shape
    groups = shape.heads // shape.kv_heads
    blocks = tuple(
        _block(shape, units * groups, units, neurons)
        for units, neurons in zip(kept.units, kept.neurons, strict=True)
    )
    config = config_of_shape(shape)
    adapters = 0
    if adapted and kept != Kept.whole(config):
        adapters = sum(RANK * (inputs + outputs) for inputs, outputs in shapes(config, kept).values())
    return UnevenCost(shape, whole.stored, blocks, adapters)


def _block(shape: Shape, heads: int, kv_heads: int, neurons: int) -> Shape:
    if not kv_heads:  # heads of no size, since heads share a key-value head
        return replace(shape, heads=1, kv_heads=1, head_dim=0, intermediate=neurons)
    return replace(shape, heads=heads, kv_heads=kv_heads, intermediate=neurons)
