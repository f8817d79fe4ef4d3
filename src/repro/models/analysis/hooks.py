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


class Place(NamedTuple):
    """One linear of a decoder: `part` is `qkv`, `out`, `up` or `down` of a layer."""

    layer: int
    part: str


PARTS = ("qkv", "out", "up", "down")
"""Linears of a layer, in execution order."""

Statistic = TypeVar("Statistic")
Observer = Callable[[Place, Tensor], None]
"""Called with a linear's place and its input, `[rows, inputs]`, or output, `[rows, outputs]`."""


def places(decoder: Decoder) -> Iterator[tuple[Place, Linear]]:
    """The linears of all resident layers, in execution order."""
    for i, layer in enumerate(decoder.layers):
        if layer is not None:
            yield from ((Place(i, part), getattr(layer, part)) for part in PARTS)


def matrices(config: DecoderConfig, part: str) -> tuple[int, ...]:
    """Output sizes of the checkpoint matrices that a linear joins: Q, K and V, or gate and up."""
    if part == "qkv":
        kv = config.kv_heads * config.head_dim
        return config.heads * config.head_dim, kv, kv
    if part == "up":
        return (config.intermediate,) * (2 if config.gated else 1)
    return (config.hidden,)


def replaced(decoder: Decoder, linears: Mapping[Place, Linear]) -> Decoder:
    """A decoder with some linears replaced."""
    layers = list(decoder.layers)
    for (i, part), linear in linears.items():
        layer = layers[i]
        assert layer is not None, f"layer {i} is not resident"
        layers[i] = replace(layer, **{part: linear})  # type: ignore[arg-type]
    return decoder.with_layers(layers)


@dataclass(frozen=True, slots=True)
class _Watched:
    """A linear that passes its input, or its output, to an observer."""

    linear: Linear
    place: Place
    observer: Observer
    outputs: bool

    def __call__(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.observer(self.place, y if self.outputs else x)
        return y

    def tensors(self) -> dict[str, Tensor]:
        return self.linear.tensors()

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return replace(self, linear=self.linear.with_tensors(tensors))

    @property
    def weight_bytes(self) -> int:
        return self.linear.weight_bytes


def watched(decoder: Decoder, observer: Observer, outputs: bool = False) -> Decoder:
    """A decoder that computes the same and passes every linear's input, or `outputs`, to the observer."""
    return replaced(
        decoder, {place: _Watched(linear, place, observer, outputs) for place, linear in places(decoder)}
    )


def accumulated(
    decoder: Decoder,
    sequences: Iterable[Tensor],
    add: Callable[[Place, Tensor, Statistic | None], Statistic],
    outputs: bool = False,
) -> dict[Place, Statistic]:
    """A statistic of each linear's inputs, or `outputs`, over token sequences, one pass each.

    Args:
        decoder: all layers resident.
        sequences: token sequences, int64 `[tokens]`.
        add: the statistic of a linear with the rows of one more pass; None stands for that of no rows.
        outputs: whether the outputs are watched.

    Raises:
        NotFiniteError: as `read`.
    """
    statistics: dict[Place, Statistic] = {}

    def observe(place: Place, x: Tensor) -> None:
        statistics[place] = add(place, x, statistics.get(place))

    read(watched(decoder, observe, outputs), sequences)
    return statistics


@torch.no_grad()
def read(decoder: Decoder, sequences: Iterable[Tensor]) -> None:
    """Run token sequences, int64 `[tokens]` each, through all layers, each with a fresh KV cache.

    Raises:
        NotFiniteError: a hidden state is NaN or infinite.
    """
    for tokens in sequences:
        require_finite(float(decoder.hidden_rows(tokens).abs().max()), "hidden state")
