"""Importance of each unit of a decoder on a corpus, by first-order gradients (ElastiLM Eq. 2).

Owns the aggregation over a unit's elements, and a forward pass without in-place operations, so that autograd
works: it is slower than `Decoder` and only processes whole sequences; the KV cache stays empty. Must not know
what happens to unimportant units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from repro.core.errors import InputError
from repro.methods.elastilm.submodels import Order, UnitDecoder
from repro.models.analysis.hooks import matrices
from repro.models.transformer.attention import AttentionMask, blindness, visible
from repro.models.transformer.cache import KVCache
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import Linear, PlainLinear, as_plain


class DifferentiableDecoder(UnitDecoder):
    """Same outputs as `UnitDecoder`, differentiable in all weights that require gradients."""

    def _build_mask(
        self, layer: int, rotation: Tensor | None, positions: Tensor, mask: Tensor | None, cache: KVCache
    ) -> AttentionMask:
        return AttentionMask(
            rotation, bias=blindness(self.config, visible(self.config, layer, positions, mask, cache))
        )

    def _attention(
        self, layer: int, h: Tensor, w: LayerWeights, shared_mask: AttentionMask, cache: KVCache
    ) -> Tensor:
        config = self.config
        heads = w.qkv(h).float().view(h.shape[0], -1, config.head_dim)
        unit_count = heads.shape[1] // (config.groups + 2)
        queries, rotary_heads = unit_count * config.groups, unit_count * (config.groups + 1)
        rotary, values = heads[:, :rotary_heads], heads[:, rotary_heads:]
        if w.qk_norm is not None:
            norms = self._head_norms(w.qk_norm, unit_count)
            rotary = torch.cat([norm(rotary[:, start:stop]) for start, stop, norm in norms], 1)
        if shared_mask.rotation is not None:
            pairs = torch.view_as_complex(rotary.unflatten(-1, (-1, 2)).contiguous())  # type: ignore[no-untyped-call]
            rotary = torch.view_as_real(pairs * shared_mask.rotation).flatten(-2)
        mixed = self._mix(
            rotary[:, :queries], rotary[:, queries:].transpose(0, 1), values.transpose(0, 1), shared_mask
        )
        return w.out(mixed)

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor, shared_mask: AttentionMask) -> Tensor:
        config, row_count = self.config, queries.shape[0]
        unit_count, _, width = keys.shape
        query_groups = queries.transpose(0, 1).reshape(unit_count, -1, width)
        scores = torch.bmm(query_groups, keys.transpose(1, 2)) * config.query_scale
        if config.attention_cap is not None:
            scores = torch.tanh(scores / config.attention_cap) * config.attention_cap
        assert shared_mask.bias is not None, "a pass of this decoder always says what rows see"
        mixed = torch.bmm(torch.softmax(scores + shared_mask.bias, -1), values)
        return mixed.view(-1, row_count, width).transpose(0, 1).reshape(row_count, -1)

    def _mlp(self, h: Tensor, w: LayerWeights) -> Tensor:
        up = w.up(h)
        if not self.config.gated:
            return w.down(self._activation(up))
        gate, up = up.chunk(2, -1)
        return w.down(self._activation(gate) * up)


def next_token_loss(decoder: DifferentiableDecoder, tokens: Tensor) -> Tensor:
    """The mean next-token loss of a sequence in nats, a differentiable scalar.

    Raises:
        InputError: there are fewer than two tokens.
    """
    if len(tokens) < 2:
        raise InputError(f"a sequence of {len(tokens)} tokens predicts none; it needs at least two")
    return F.cross_entropy(decoder.head(decoder.hidden_rows(tokens)[:-1]), tokens[1:])


Aggregate = Literal["sum_abs", "abs_sum"]
Pairing = Literal["shared", "folded"]


@dataclass(frozen=True)
class Measure:
    """How element scores are aggregated to a unit's importance.

    Attributes:
        aggregate: `sum_abs` sums |w dL/dw| over the elements, as LLM-Pruner and the release do; `abs_sum` is
            |sum of w dL/dw|, as Eq. 2 is written.
        pairing: query heads counted for a key-value head: `shared` are those that attend to it; `folded` are
            every n-th, as in the release, which differs under grouped-query attention.
    """

    aggregate: Aggregate = "sum_abs"
    pairing: Pairing = "shared"


@dataclass(frozen=True)
class Importance:
    """Importance of units and neurons per layer: fp32 `[kv_heads]` and `[intermediate]`."""

    units: tuple[Tensor, ...]
    neurons: tuple[Tensor, ...]

    def order(self) -> Order:
        """Units and neurons by descending importance; ties keep their order."""
        units, neurons = (
            tuple(scores.argsort(descending=True, stable=True) for scores in by_layer)
            for by_layer in (self.units, self.neurons)
        )
        return Order(units, neurons)


@torch.enable_grad()
def importance(decoder: Decoder, corpus: Sequence[Tensor], measure: Measure | None = None) -> Importance:
    """Importance of each unit, from the gradient of the mean next-token loss over a corpus.

    Deviation: Eq. 2 does not define the aggregation over a unit's elements; by default absolute values are
    summed, as in the release.

    Args:
        decoder: dense linears, all layers resident. It is not changed; gradients double the memory.
        corpus: token sequences, int64 `[tokens]` each.
        measure: aggregation over a unit's elements; None for the default.

    Raises:
        InputError: empty corpus, a sequence of fewer than two tokens, or a linear that is not dense.
    """
    if not corpus:
        raise InputError("units are ranked on a corpus of no sequence; set corpus.texts to at least 1")
    layers = [layer.map(_with_gradients) for layer in decoder.resident_layers()]
    differentiable = DifferentiableDecoder(decoder.config, layers, decoder.ends)
    for tokens in corpus:
        mean_loss = next_token_loss(differentiable, tokens.to(decoder.device)) / len(corpus)
        mean_loss.backward()  # type: ignore[no-untyped-call]
    scores = [_of_layer(decoder.config, layer, measure or Measure()) for layer in layers]
    return Importance(tuple(units for units, _ in scores), tuple(neurons for _, neurons in scores))


def _with_gradients(linear: Linear) -> PlainLinear:
    """A linear that shares memory with a dense one and whose weights require gradients."""
    dense_linear = as_plain(linear)
    bias = None if dense_linear.bias is None else dense_linear.bias.detach().requires_grad_()
    return PlainLinear(dense_linear.weight.detach().requires_grad_(), bias)


def _of_layer(config: DecoderConfig, layer: LayerWeights, measure: Measure) -> tuple[Tensor, Tensor]:
    """Importance of a layer's units and neurons, after the backward pass."""
    sums_magnitudes = measure.aggregate == "sum_abs"
    queries, keys, values = torch.split(
        _by_output(as_plain(layer.qkv), sums_magnitudes), list(matrices(config, "qkv"))
    )
    heads = (queries + _by_input(as_plain(layer.out), sums_magnitudes)).view(config.heads, -1).sum(1)
    # folded: query head h counts for unit h % kv_heads; shared: for its own key-value head.
    heads_by_unit = (
        heads.view(-1, config.kv_heads).t()
        if measure.pairing == "folded"
        else heads.view(config.kv_heads, -1)
    )
    units = heads_by_unit.sum(1) + (keys + values).view(config.kv_heads, -1).sum(1)
    up_scores = _by_output(as_plain(layer.up), sums_magnitudes).view(-1, config.intermediate).sum(0)
    return units.abs(), (up_scores + _by_input(as_plain(layer.down), sums_magnitudes)).abs()


def _by_output(linear: PlainLinear, absolute: bool) -> Tensor:
    """Scores summed over each output's weights and bias, `[outputs]`."""
    weights = _terms(linear.weight, absolute).sum(1)
    return weights if linear.bias is None else weights + _terms(linear.bias, absolute)


def _by_input(linear: PlainLinear, absolute: bool) -> Tensor:
    """Scores summed over each input's weights, `[inputs]`; the bias does not count."""
    return _terms(linear.weight, absolute).sum(0)


def _terms(tensor: Tensor, absolute: bool) -> Tensor:
    """First-order loss change w * dL/dw per element, or its absolute value."""
    assert tensor.grad is not None, "the loss of a decoder depends on every weight"
    terms = tensor.detach() * tensor.grad
    return terms.abs() if absolute else terms
