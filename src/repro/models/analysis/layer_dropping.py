"""A decoder of which layers, or halves of layers, are gone.

Owns what stands in the place of a half that is gone, and what a decoder of some of the layers is. Must not
know which should go.
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
    """In the place of a linear that is gone: no weights, and nobody calls it."""

    weight_bytes: int = 0

    def __call__(self, x: Tensor) -> Tensor:
        """A half that is gone is passed over, by `PartialDecoder`."""
        raise TypeError("this half of the layer is gone; open its decoder as a PartialDecoder")

    def tensors(self) -> dict[str, Tensor]:
        """None."""
        return {}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Absent:
        """Itself."""
        return self


class PartialDecoder(Decoder):
    """A decoder that passes over the halves of layers that are gone.

    A layer without attention still fills its part of the cache, with zeros, so that all layers' caches have
    one length whatever is gone.
    """

    def _attention(self, i: int, h: Tensor, w: LayerWeights, shared: AttentionMask, cache: KVCache) -> Tensor:
        if has_attention(w):
            return super()._attention(i, h, w, shared, cache)
        cache.append_joint(i, h.new_zeros(h.shape[0], 2 * self.config.kv_heads, self.config.head_dim))
        return torch.zeros_like(h)

    def _mlp(self, h: Tensor, w: LayerWeights) -> Tensor:
        return super()._mlp(h, w) if has_mlp(w) else torch.zeros_like(h)


def has_attention(layer: LayerWeights) -> bool:
    """Whether a layer's attention is there."""
    return not isinstance(layer.qkv, Absent)


def has_mlp(layer: LayerWeights) -> bool:
    """Whether a layer's MLP is there."""
    return not isinstance(layer.up, Absent)


def without_attention(layer: LayerWeights) -> LayerWeights:
    """A layer whose attention is gone, with the norms that are its own; for a `PartialDecoder`."""
    # Halves side by side read one norm, which the MLP still needs.
    before = layer.before_attention if layer.before_mlp is None else None
    gone = Absent()
    return replace(layer, qkv=gone, out=gone, before_attention=before, after_attention=None, qk_norm=None)


def without_mlp(layer: LayerWeights) -> LayerWeights:
    """A layer whose MLP is gone, with the norms that are its own; for a `PartialDecoder`."""
    return replace(layer, up=Absent(), down=Absent(), before_mlp=None, after_mlp=None)


def of_layers(decoder: Decoder, kept: Sequence[int]) -> Decoder:
    """A decoder of these layers, in this order, each with the window and the rotation that it had.

    Raises:
        InputError: no layer is kept, or one that there is not.
    """
    config = decoder.config
    if not kept or not set(kept) <= set(range(config.layers)):
        raise InputError(f"layers {list(kept)} cannot be kept of {config.layers}; name at least one of them")
    sliding = tuple(config.sliding[i] for i in kept) if config.sliding else ()
    layers = [decoder.layers[i] for i in kept]
    return type(decoder)(replace(config, layers=len(kept), sliding=sliding), layers, decoder.ends)


def with_layers(decoder: Decoder, layers: Sequence[LayerWeights]) -> PartialDecoder:
    """A decoder over other layers, as many, of which halves may be gone."""
    return PartialDecoder(decoder.config, layers, decoder.ends)


def resident(decoder: Decoder) -> list[LayerWeights]:
    """All layers of a decoder.

    Raises:
        InputError: one is not resident.
    """
    layers = [layer for layer in decoder.layers if layer is not None]
    if len(layers) != decoder.config.layers:
        raise InputError("a layer is not resident; load the decoder with all of them")
    return layers


def elements(layer: LayerWeights) -> int:
    """Elements of a layer's matrices; norms and biases do not count."""
    held = [tensor for linear in layer.linears for tensor in linear.tensors().values()]
    return sum(prod(tensor.shape) for tensor in held if tensor.dim() == 2)


def block_elements(decoder: Decoder) -> int:
    """Elements of the matrices of all layers: what a level is a share of."""
    return sum(map(elements, resident(decoder)))
