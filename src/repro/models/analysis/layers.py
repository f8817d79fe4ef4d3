"""Decoders with layers, or the attention or MLP of layers, removed, and how important each of these is.

Owns the placeholder for a removed half, the selection of layers, and the measures: loss without a layer,
cosine between its input and output. Must not know which should be removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from repro.core.errors import InputError
from repro.models.transformer.attention import AttentionMask
from repro.models.transformer.cache import KVCache
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import Linear


@dataclass(frozen=True, slots=True)
class Absent(Linear):
    """Placeholder for a removed linear: no weights, never called."""

    def __call__(self, x: Tensor) -> Tensor:
        """Raises TypeError: `PartialDecoder` skips removed halves."""
        raise TypeError("this half of the layer is gone; open its decoder as a PartialDecoder")

    def tensors(self) -> dict[str, Tensor]:
        """An empty dict."""
        return {}


class PartialDecoder(Decoder):
    """A decoder that skips removed attention and MLP halves.

    A layer without attention fills its KV cache with zeros, so that all layers' caches have the same length.
    """

    def _attention(
        self, layer: int, h: Tensor, w: LayerWeights, shared_mask: AttentionMask, cache: KVCache
    ) -> Tensor:
        if has_attention(w):
            return super()._attention(layer, h, w, shared_mask, cache)
        cache.append_joint(layer, h.new_zeros(h.shape[0], 2 * self.config.kv_heads, self.config.head_dim))
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


Corpus = Sequence[Tensor]
"""Token sequences, int64 `[tokens]` each."""
Turn = tuple[Tensor, Tensor]
"""Hidden states before and after a layer or half, `[rows, hidden]` each."""


@torch.no_grad()
def losses_without(decoder: Decoder, corpus: Corpus) -> list[float]:
    """Mean next-token loss of a corpus in nats, without each layer in turn (ElastiLM 3.2).

    After one full pass, each layer is skipped by running the layers above it on its input.

    Raises:
        InputError: the corpus is empty, or a sequence has fewer than two tokens.
    """
    count, layers = _count_predicted(corpus), range(decoder.config.layers)
    sums = [0.0 for _ in layers]
    for tokens in corpus:
        for i, x in enumerate(rows_by_layer(decoder, tokens)[:-1]):
            sums[i] += _nats(decoder, through(decoder, layers[i + 1 :], x)[-1], tokens)
    return [total / count for total in sums]


@torch.no_grad()
def loss(decoder: Decoder, corpus: Corpus) -> float:
    """Mean next-token loss of a corpus in nats; raises as `losses_without`."""
    count = _count_predicted(corpus)
    return sum(_nats(decoder, decoder.hidden_rows(tokens), tokens) for tokens in corpus) / count


@torch.no_grad()
def block_influences(decoder: Decoder, corpus: Corpus) -> list[float]:
    """1 minus the mean cosine of a token's hidden state before and after each layer (ShortGPT's BI)."""
    cosines = _mean_cosines(list(pairwise(rows_by_layer(decoder, tokens))) for tokens in corpus)
    return [1.0 - cosine for cosine in cosines]


@torch.no_grad()
def half_similarities(decoder: Decoder, corpus: Corpus) -> tuple[list[float], list[float]]:
    """Mean cosines of a token's hidden state before and after each layer's attention, and each layer's MLP.

    The state after a half includes the residual (LLM-Drop); parallel halves start from the same state.
    """
    cosines = _mean_cosines(_halves(decoder, tokens) for tokens in corpus)
    return cosines[::2], cosines[1::2]


@torch.no_grad()
def rows_by_layer(decoder: Decoder, tokens: Tensor) -> list[Tensor]:
    """Hidden states before the first layer and after each one, `layers + 1` times fp32 `[tokens, hidden]`."""
    x = decoder.embed(tokens, torch.arange(len(tokens)))
    return through(decoder, range(decoder.config.layers), x)


@torch.no_grad()
def through(decoder: Decoder, layers: Iterable[int], x: Tensor) -> list[Tensor]:
    """Hidden states of a whole sequence: `x`, fp32 `[tokens, hidden]`, and one after each of some layers."""
    cache = KVCache(decoder.config, len(x))
    return [x, *decoder.states(x, torch.arange(len(x)), None, cache, layers)]


def _halves(decoder: Decoder, tokens: Tensor) -> list[Turn]:
    """Hidden states before and after attention, then MLP, of each layer."""
    layers = decoder.resident_layers()
    attention = partial_decoder(decoder, [without_mlp(layer) for layer in layers])
    mlp = partial_decoder(decoder, [without_attention(layer) for layer in layers])
    half_layer_turns: list[Turn] = []
    for i, x in enumerate(rows_by_layer(decoder, tokens)[:-1]):
        after_attention = through(attention, [i], x)[-1]
        start = x if decoder.config.block == "parallel" else after_attention
        half_layer_turns += [(x, after_attention), (start, through(mlp, [i], start)[-1])]
    return half_layer_turns


def _mean_cosines(sequences: Iterable[Sequence[Turn]]) -> list[float]:
    """Mean cosine of each before-after pair over all tokens of all sequences."""
    cosines = [[F.cosine_similarity(x, y, dim=-1) for x, y in turns] for turns in sequences]
    if not cosines:
        raise InputError("layers are ranked on a corpus of no sequence; set corpus.texts to at least 1")
    return [float(torch.cat(layer_cosines).double().mean()) for layer_cosines in zip(*cosines, strict=True)]


def _count_predicted(corpus: Corpus) -> int:
    """Number of predicted tokens of a corpus."""
    if not corpus or min(map(len, corpus)) < 2:
        raise InputError("a loss needs sequences of at least two tokens; raise corpus.texts or corpus.tokens")
    return sum(len(tokens) - 1 for tokens in corpus)


def _nats(decoder: Decoder, hidden: Tensor, tokens: Tensor) -> float:
    """Summed next-token loss of a sequence, from its hidden states after the last layer."""
    return float(F.cross_entropy(decoder.head(hidden[:-1]), tokens[1:], reduction="sum"))
