"""Hooks on the inputs of a decoder's linears during a forward pass.

Owns the names of linears within a decoder, their replacement, and the hooks. Must not know what observers do
with the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from repro.models.forward.network import require_finite
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import Linear


class LinearId(NamedTuple):
    """Which linear of a decoder: `part` is `qkv`, `out`, `up` or `down` of a layer."""

    layer: int
    part: str


PARTS = ("qkv", "out", "up", "down")
"""Linears of a layer, in execution order."""

Statistic = TypeVar("Statistic")
Observer = Callable[[LinearId, Tensor], None]
"""Called with a linear's place and its input, `[rows, inputs]`, or output, `[rows, outputs]`."""


def linears_of(decoder: Decoder) -> Iterator[tuple[LinearId, Linear]]:
    """The linears of all resident layers, in execution order."""
    for i, layer in enumerate(decoder.layers):
        if layer is not None:
            yield from ((LinearId(i, part), getattr(layer, part)) for part in PARTS)


def matrices(config: DecoderConfig, part: str) -> tuple[int, ...]:
    """Output sizes of the checkpoint matrices that a linear joins: Q, K and V, or gate and up."""
    if part == "qkv":
        kv = config.kv_heads * config.head_dim
        return config.heads * config.head_dim, kv, kv
    if part == "up":
        return (config.intermediate,) * (2 if config.gated else 1)
    return (config.hidden,)


def with_linears(decoder: Decoder, linears: Mapping[LinearId, Linear]) -> Decoder:
    """A decoder with some linears replaced."""
    layers = list(decoder.layers)
    for (i, part), linear in linears.items():
        layer = layers[i]
        assert layer is not None, f"layer {i} is not resident"
        layers[i] = replace(layer, **{part: linear})  # type: ignore[arg-type]
    return decoder.with_layers(layers)


@dataclass(frozen=True, slots=True)
class _ObservedLinear:
    """A linear that passes its input, or its output, to an observer."""

    linear: Linear
    name: LinearId
    observer: Observer
    outputs: bool

    def __call__(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.observer(self.name, y if self.outputs else x)
        return y

    def tensors(self) -> dict[str, Tensor]:
        return self.linear.tensors()

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return replace(self, linear=self.linear.with_tensors(tensors))

    @property
    def weight_bytes(self) -> int:
        return self.linear.weight_bytes


def with_observer(decoder: Decoder, observer: Observer, outputs: bool = False) -> Decoder:
    """A decoder that computes the same and passes every linear's input, or `outputs`, to the observer."""
    return with_linears(
        decoder,
        {name: _ObservedLinear(linear, name, observer, outputs) for name, linear in linears_of(decoder)},
    )


def accumulate(
    decoder: Decoder,
    sequences: Iterable[Tensor],
    add: Callable[[LinearId, Tensor, Statistic | None], Statistic],
    outputs: bool = False,
) -> dict[LinearId, Statistic]:
    """A statistic of each linear's inputs, or `outputs`, over token sequences, one pass each.

    Args:
        decoder: all layers resident.
        sequences: token sequences, int64 `[tokens]`.
        add: the statistic of a linear with the rows of one more pass; None stands for that of no rows.
        outputs: whether the outputs are observed.

    Raises:
        NotFiniteError: as `read`.
    """
    statistics: dict[LinearId, Statistic] = {}

    def observe(name: LinearId, x: Tensor) -> None:
        statistics[name] = add(name, x, statistics.get(name))

    read(with_observer(decoder, observe, outputs), sequences)
    return statistics


@torch.no_grad()
def read(decoder: Decoder, sequences: Iterable[Tensor]) -> None:
    """Run token sequences, int64 `[tokens]` each, through all layers, each with a fresh KV cache.

    Raises:
        NotFiniteError: a hidden state is NaN or infinite.
    """
    for tokens in sequences:
        require_finite(float(decoder.hidden_rows(tokens).abs().max()), "hidden state")
