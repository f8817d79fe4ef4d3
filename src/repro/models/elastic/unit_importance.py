"""What each unit of a decoder is worth on a corpus, by first-order gradients (ElastiLM Eq. 2), and its order.

Owns the sums over a unit's elements. Must not know what becomes of unimportant units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.models.analysis.hooks import matrices
from repro.models.analysis.layer_dropping import resident
from repro.models.elastic.differentiable import DifferentiableDecoder, next_token_loss
from repro.models.elastic.submodels import Order
from repro.models.quantization.scale_folding import plain
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import Linear, PlainLinear

CHOICES = {"aggregate": ("sum_abs", "abs_sum"), "pairing": ("shared", "folded")}


@dataclass(frozen=True)
class Measure:
    """How a unit's importance is made of its elements.

    Attributes:
        aggregate: `sum_abs` sums |w dL/dw| over its elements, as LLM-Pruner and the release do; `abs_sum` is
            the size of the sum, which Eq. 2 says literally.
        pairing: which query heads count for a key-value head: `shared` those that read it; `folded` every
            n-th, as the release sums them up, which are others where heads are grouped.
    """

    aggregate: str = "sum_abs"
    pairing: str = "shared"

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise InputError(f"{name} is {getattr(self, name)!r}; choose from {', '.join(choices)}")


@dataclass(frozen=True)
class Importance:
    """Of all units and neurons, per layer: fp32 `[kv_heads]` and `[intermediate]`."""

    units: tuple[Tensor, ...]
    neurons: tuple[Tensor, ...]

    def order(self) -> Order:
        """The most important first; of equals the earlier."""
        units, neurons = (
            tuple(one.argsort(descending=True, stable=True) for one in some)
            for some in (self.units, self.neurons)
        )
        return Order(units, neurons)


@torch.enable_grad()
def importance(decoder: Decoder, corpus: Sequence[Tensor], measure: Measure | None = None) -> Importance:
    """What each unit is worth, from one backward pass of the mean next-token loss of a corpus.

    Deviation: Eq. 2 asks for the importance of a unit and leaves open how elements become one; by default
    absolute values are summed, as in the release.

    Args:
        decoder: dense linears, all layers resident. It is not changed; gradients take as much memory again.
        corpus: token sequences, int64 `[tokens]` each.
        measure: how a unit's elements become one number; None for the default.

    Raises:
        InputError: no corpus, or a sequence of fewer than two tokens; a linear is not dense.
    """
    if not corpus:
        raise InputError("units are ranked on a corpus of no sequence; set corpus.texts to at least 1")
    layers = [_wanting(layer) for layer in resident(decoder)]
    passing = DifferentiableDecoder(decoder.config, layers, decoder.ends)
    for tokens in corpus:
        loss = next_token_loss(passing, tokens.to(decoder.device)) / len(corpus)
        loss.backward()  # type: ignore[no-untyped-call]
    found = [_of_layer(decoder.config, layer, measure or Measure()) for layer in layers]
    return Importance(tuple(units for units, _ in found), tuple(neurons for _, neurons in found))


def _wanting(layer: LayerWeights) -> LayerWeights:
    """A layer on the same memory whose weights get gradients."""

    def wanting(linear: Linear) -> PlainLinear:
        dense = plain(linear)
        bias = None if dense.bias is None else dense.bias.detach().requires_grad_()
        return PlainLinear(dense.weight.detach().requires_grad_(), bias)

    return replace(
        layer, qkv=wanting(layer.qkv), out=wanting(layer.out), up=wanting(layer.up), down=wanting(layer.down)
    )


def _of_layer(config: DecoderConfig, layer: LayerWeights, measure: Measure) -> tuple[Tensor, Tensor]:
    """Of a layer's units and neurons, after the backward pass."""
    absolute = measure.aggregate == "sum_abs"
    queries, keys, values = torch.split(_by_output(plain(layer.qkv), absolute), list(matrices(config, "qkv")))
    heads = (queries + _by_input(plain(layer.out), absolute)).view(config.heads, -1).sum(1)
    # Folded, head h counts for unit h modulo the number of units; shared, for the one that it reads.
    paired = (
        heads.view(-1, config.kv_heads).t()
        if measure.pairing == "folded"
        else heads.view(config.kv_heads, -1)
    )
    units = paired.sum(1) + (keys + values).view(config.kv_heads, -1).sum(1)
    up = _by_output(plain(layer.up), absolute).view(-1, config.intermediate).sum(0)
    return units.abs(), (up + _by_input(plain(layer.down), absolute)).abs()


def _by_output(linear: PlainLinear, absolute: bool) -> Tensor:
    """Sums over each output's weights and its bias, `[outputs]`."""
    weights = _terms(linear.weight, absolute).sum(1)
    return weights if linear.bias is None else weights + _terms(linear.bias, absolute)


def _by_input(linear: PlainLinear, absolute: bool) -> Tensor:
    """Sums over each input's weights, `[inputs]`; the bias is no input's."""
    return _terms(linear.weight, absolute).sum(0)


def _terms(tensor: Tensor, absolute: bool) -> Tensor:
    """How fast the loss falls as each element shrinks."""
    assert tensor.grad is not None, "the loss of a decoder depends on every weight"
    found = tensor.detach() * tensor.grad
    return found.abs() if absolute else found
