"""Sub-models of one decoder: units are sorted by importance, a sub-model is a leading slice of each matrix.

Owns units, reordering and views (ElastiLM 3.2). Must not know how importance is measured or how many units a
level keeps. A unit is a key-value head with its query heads, or a neuron: a row of gate and up with a column
of down. Linears are stored as several matrices, or transposed, so that a smaller one is a contiguous view.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.models.analysis.hooks import matrices
from repro.models.transformer.attention import AttentionMask
from repro.models.transformer.cache import KVCache
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import Linear, PlainLinear, TensorFields, as_plain
from repro.models.transformer.norm import RMSNorm


@dataclass(frozen=True, slots=True)
class JoinedLinear(Linear):
    """Several linears over the same input, with concatenated outputs."""

    parts: tuple[Linear, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        if len(self.parts) == 1:
            return self.parts[0](x)
        return torch.cat([part(x) for part in self.parts], -1)

    def tensors(self) -> dict[str, Tensor]:
        """See `Linear`; names are prefixed with the part's index."""
        return {
            f"{i}.{name}": tensor
            for i, part in enumerate(self.parts)
            for name, tensor in part.tensors().items()
        }


@dataclass(frozen=True, slots=True)
class TransposedLinear(TensorFields):
    """A dense weight `[inputs, outputs]`, whose first inputs are a contiguous view."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        x = x.to(self.weight.dtype)
        return x @ self.weight if self.bias is None else torch.addmm(self.bias, x, self.weight)


def split_outputs(linear: PlainLinear, outputs: Sequence[int]) -> list[PlainLinear]:
    """The linears of consecutive groups of outputs, as views."""
    linears, start = [], 0
    for output_count in outputs:
        bias = None if linear.bias is None else linear.bias.narrow(0, start, output_count)
        linears.append(PlainLinear(linear.weight.narrow(0, start, output_count), bias))
        start += output_count
    return linears


@dataclass(frozen=True)
class Order:
    """Indices of all attention units and neurons per layer, most important first, int64."""

    units: tuple[Tensor, ...]
    neurons: tuple[Tensor, ...]

    @classmethod
    def original(cls, config: DecoderConfig) -> Order:
        """The order of the decoder itself."""
        units, neurons = torch.arange(config.kv_heads), torch.arange(config.intermediate)
        return cls((units,) * config.layers, (neurons,) * config.layers)

    @property
    def digest(self) -> str:
        """Content hash, in hex."""
        hasher = hashlib.sha256()
        for indices in (*self.units, *self.neurons):
            hasher.update(indices.to(torch.int64).contiguous().numpy().tobytes() + b"|")
        return hasher.hexdigest()


@dataclass(frozen=True)
class LayerSizes:
    """Number of attention units and neurons per layer of a sub-model."""

    units: tuple[int, ...]
    neurons: tuple[int, ...]

    @classmethod
    def full(cls, config: DecoderConfig) -> LayerSizes:
        """All units and neurons of the decoder."""
        return cls((config.kv_heads,) * config.layers, (config.intermediate,) * config.layers)

    def parameters(self, config: DecoderConfig) -> int:
        """Weights of the layers' matrices, without biases and norms."""
        return sum(self.units) * unit_parameters(config) + sum(self.neurons) * neuron_parameters(config)

    def true_ratio(self, config: DecoderConfig) -> float:
        """Share of the whole decoder's layer weights."""
        return self.parameters(config) / LayerSizes.full(config).parameters(config)


def unit_parameters(config: DecoderConfig) -> int:
    """Weights of one attention unit: rows of Q, K and V, columns of the output projection."""
    return (2 * config.groups + 2) * config.head_dim * config.hidden


def neuron_parameters(config: DecoderConfig) -> int:
    """Weights of one neuron."""
    return (3 if config.gated else 2) * config.hidden


class UnitDecoder(Decoder):
    """A decoder whose layers may have fewer attention units and neurons than its configuration.

    The number of units follows from the output size of `qkv`. The KV cache has room for all key-value heads;
    missing ones are zero and not read.
    """

    def _attention(
        self, layer: int, h: Tensor, w: LayerWeights, mask: AttentionMask, cache: KVCache
    ) -> Tensor:
        config = self.config
        heads = w.qkv(h).float().view(h.shape[0], -1, config.head_dim)
        unit_count = heads.shape[1] // (config.groups + 2)
        queries, rotary_heads = unit_count * config.groups, unit_count * (config.groups + 1)
        if w.qk_norm is not None:
            for start, stop, norm in self._head_norms(w.qk_norm, unit_count):
                heads[:, start:stop] = norm(heads[:, start:stop])
        if mask.rotation is not None:
            heads.view(torch.complex64)[:, :rotary_heads].mul_(mask.rotation)
        rows = heads[:, queries:]
        if unit_count < config.kv_heads:
            rows = rows.new_zeros(h.shape[0], 2, config.kv_heads, config.head_dim)
            rows[:, :, :unit_count] = heads[:, queries:].view(-1, 2, unit_count, config.head_dim)
            rows = rows.flatten(1, 2)
        keys, values = cache.append_joint(layer, rows)
        return w.out(self._mix(heads[:, :queries], keys[:unit_count], values[:unit_count], mask))

    def _head_norms(self, norm: RMSNorm, unit_count: int) -> list[tuple[int, int, RMSNorm]]:
        """Q and K norms of the remaining heads, each with the range of heads it applies to."""
        queries, keys = unit_count * self.config.groups, unit_count
        rows = norm.weight
        return [
            (0, queries, replace(norm, weight=rows.narrow(0, 0, queries))),
            (queries, queries + keys, replace(norm, weight=rows.narrow(0, self.config.heads, keys))),
        ]


def reorder(decoder: Decoder, order: Order) -> UnitDecoder:
    """An equivalent decoder with reordered units and one contiguous tensor per matrix.

    Q, K, V, gate and up keep outputs as rows; the output projection and down are stored transposed, so the
    first units are a leading slice of every matrix.

    Args:
        decoder: dense linears (`linear.PlainLinear`), all layers resident. It is not changed.
        order: order of all its units and neurons.

    Raises:
        InputError: a linear is not dense, a layer is not resident, or the order does not fit the decoder.
    """
    config = decoder.config
    _check(config, order)
    layers = [
        _reorder_layer(config, layer, units.to(decoder.device), neurons.to(decoder.device))
        for layer, units, neurons in zip(decoder.resident_layers(), order.units, order.neurons, strict=True)
    ]
    return UnitDecoder(config, layers, decoder.ends)


def submodel(decoder: UnitDecoder, sizes: LayerSizes) -> UnitDecoder:
    """A sub-model of the first units and neurons of each layer, as views without copies.

    Args:
        decoder: result of `reorder`, without adapters.
        sizes: at least one unit and one neuron per layer.

    Raises:
        InputError: a layer would keep none or more than it has, or the number of layers differs.
    """
    config = decoder.config
    for kind, counts, available in (
        ("units", sizes.units, config.kv_heads),
        ("neurons", sizes.neurons, config.intermediate),
    ):
        wrong_counts = [count for count in counts if not 1 <= count <= available]
        if wrong_counts or len(counts) != config.layers:
            raise InputError(
                f"{len(counts)} layers would keep {wrong_counts or 'so many'} {kind}; "
                f"each of {config.layers} layers keeps 1 to {available}"
            )
    layers = [
        _slice_layer(config, layer, units, neurons)
        for layer, units, neurons in zip(decoder.resident_layers(), sizes.units, sizes.neurons, strict=True)
    ]
    return decoder.with_layers(layers)


def dense_copy(decoder: UnitDecoder) -> UnitDecoder:
    """A copy of a sub-model with one dense weight per linear, like a pruned model."""
    return decoder.with_layers([layer.map(_dense) for layer in decoder.resident_layers()])


def _check(config: DecoderConfig, order: Order) -> None:
    for kind, orders, count in (
        ("units", order.units, config.kv_heads),
        ("neurons", order.neurons, config.intermediate),
    ):
        fits = len(orders) == config.layers and all(
            indices.shape == (count,) and torch.equal(indices.sort().values, torch.arange(count))
            for indices in orders
        )
        if not fits:
            raise InputError(
                f"the order of {kind} must name each of {count} once in each of {config.layers} layers; "
                f"got {len(orders)} layers of {sorted({len(indices) for indices in orders})}"
            )


def _reorder_layer(config: DecoderConfig, w: LayerWeights, units: Tensor, neurons: Tensor) -> LayerWeights:
    qkv_parts = split_outputs(as_plain(w.qkv), matrices(config, "qkv"))
    up_parts = split_outputs(as_plain(w.up), matrices(config, "up"))
    norm = w.qk_norm
    if norm is not None:
        queries, keys = norm.weight[: config.heads], norm.weight[config.heads :]
        norm = replace(norm, weight=torch.cat((_rows(queries, units), _rows(keys, units))))
    return replace(
        w,
        qkv=JoinedLinear(tuple(_outputs(part, units) for part in qkv_parts)),
        out=_inputs(as_plain(w.out), units),
        up=JoinedLinear(tuple(_outputs(part, neurons) for part in up_parts)),
        down=_inputs(as_plain(w.down), neurons),
        qk_norm=norm,
    )


def _rows(tensor: Tensor, order: Tensor) -> Tensor:
    """A copy with its `len(order)` equal blocks of rows reordered."""
    blocks = tensor.view(len(order), -1, *tensor.shape[1:])
    return blocks.index_select(0, order).flatten(0, 1)


def _outputs(linear: PlainLinear, order: Tensor) -> PlainLinear:
    return PlainLinear(
        _rows(linear.weight, order), None if linear.bias is None else _rows(linear.bias, order)
    )


def _inputs(linear: PlainLinear, order: Tensor) -> TransposedLinear:
    return TransposedLinear(_rows(linear.weight.t(), order).contiguous(), linear.bias)


def _slice_layer(
    config: DecoderConfig, layer: LayerWeights, unit_count: int, neuron_count: int
) -> LayerWeights:
    queries, keys = unit_count * config.groups * config.head_dim, unit_count * config.head_dim
    return replace(
        layer,
        qkv=_slice_joined(layer.qkv, (queries, keys, keys)),
        out=_slice_transposed(layer.out, queries),
        up=_slice_joined(layer.up, (neuron_count,) * len(matrices(config, "up"))),
        down=_slice_transposed(layer.down, neuron_count),
    )


def _slice_joined(linear: Linear, counts: Sequence[int]) -> JoinedLinear:
    assert isinstance(linear, JoinedLinear), "submodel takes what reorder gives"
    return JoinedLinear(
        tuple(
            split_outputs(as_plain(part), [output_count])[0]
            for part, output_count in zip(linear.parts, counts, strict=True)
        )
    )


def _slice_transposed(linear: Linear, output_count: int) -> TransposedLinear:
    assert isinstance(linear, TransposedLinear), "submodel takes what reorder gives"
    return replace(linear, weight=linear.weight.narrow(0, 0, output_count))


def _dense(linear: Linear) -> PlainLinear:
    """An equivalent dense linear in new memory."""
    if isinstance(linear, TransposedLinear):
        return PlainLinear(linear.weight.t().contiguous(), linear.bias)
    assert isinstance(linear, JoinedLinear), "a sub-model's linears are joined or transposed"
    dense_linears = [as_plain(part) for part in linear.parts]
    biases = [part.bias for part in dense_linears if part.bias is not None]
    return PlainLinear(
        torch.cat([part.weight for part in dense_linears]), torch.cat(biases) if biases else None
    )
