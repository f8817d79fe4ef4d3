"""Decoders with layers, or the attention or MLP of layers, removed.

Owns the placeholder for a removed half and the selection of layers. Must not know which should be removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.models.transformer.attention import AttentionMask
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.layer import LayerWeights


@dataclass(frozen=True, slots=True)
class Absent:
    """Placeholder for a removed linear: no weights, never called."""

    weight_bytes: int = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Raises TypeError: `PartialDecoder` skips removed halves."""
        raise TypeError("this half of the layer is gone; open its decoder as a PartialDecoder")

    def tensors(self) -> dict[str, Tensor]:
        """An empty dict."""
        return {}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Absent:
        """Returns itself."""
        return self


class PartialDecoder(Decoder):
    """A decoder that skips removed attention and MLP halves.

    A layer without attention fills its KV cache with zeros, so that all layers' caches have the same length.
    """

    def _attention(self, i: int, h: Tensor, w: LayerWeights, shared: AttentionMask, cache: KVCache) -> Tensor:
        if has_attention(w):
            return super()._attention(i, h, w, shared, cache)
        cache.append_joint(i, h.new_zeros(h.shape[0], 2 * self.config.kv_heads, self.config.head_dim))
        return torch.zeros_like(h)

    def _mlp(self, h: Tensor, w: LayerWeights) -> Tensor:
        return super()._mlp(h, w) if has_mlp(w) else torch.zeros_like(h)


def has_attention(layer: LayerWeights) -> bool:
    """Whether a layer has attention."""
    return not isinstance(layer.qkv, Absent)


def has_mlp(layer: LayerWeights) -> bool:
    """Whether a layer has an MLP."""
    return not isinstance(layer.up, Absent)


def without_attention(layer: LayerWeights) -> LayerWeights:
    """A layer without attention and the norms only it uses; for a `PartialDecoder`."""
    # Parallel attention and MLP share one norm, which the MLP still needs.
    before = layer.before_attention if layer.before_mlp is None else None
    absent = Absent()
    return replace(layer, qkv=absent, out=absent, before_attention=before, after_attention=None, qk_norm=None)


def without_mlp(layer: LayerWeights) -> LayerWeights:
    """A layer without MLP and the norms only it uses; for a `PartialDecoder`."""
    return replace(layer, up=Absent(), down=Absent(), before_mlp=None, after_mlp=None)


def of_layers(decoder: Decoder, indices: Sequence[int]) -> Decoder:
    """A decoder of the layers at `indices`, in this order, each with its own sliding window and RoPE.

    Raises:
        InputError: `indices` is empty or names a layer that does not exist.
    """
    config = decoder.config
    if not indices or not set(indices) <= set(range(config.layers)):
        raise InputError(
            f"layers {list(indices)} cannot be kept of {config.layers}; name at least one of them"
        )
    sliding = tuple(config.sliding[i] for i in indices) if config.sliding else ()
    layers = [decoder.layers[i] for i in indices]
    return decoder.with_layers(layers, config=replace(config, layers=len(indices), sliding=sliding))


def partial_decoder(decoder: Decoder, layers: Sequence[LayerWeights]) -> PartialDecoder:
    """A decoder with its layers replaced by as many others, whose halves may be removed."""
    return PartialDecoder(decoder.config, layers, decoder.ends)


def elements(layer: LayerWeights) -> int:
    """Number of elements of a layer's matrices, without norms and biases."""
    tensors = [tensor for linear in layer.linears for tensor in linear.tensors().values()]
    return sum(prod(tensor.shape) for tensor in tensors if tensor.dim() == 2)


def block_elements(decoder: Decoder) -> int:
    """Number of elements of all layers' matrices, the base of an elastic model's levels."""
    return sum(map(elements, decoder.resident_layers()))
