"""Linears stored as several matrices, or transposed, so that a smaller linear is a contiguous view.

Owns these two layouts and the slicing of them. Must not know what outputs or inputs stand for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from repro.models.transformer.linear import Linear, PlainLinear, TensorFields


@dataclass(frozen=True, slots=True)
class JoinedLinear:
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

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> JoinedLinear:
        """See `Linear`."""
        parts = (
            part.with_tensors({name: tensors[f"{i}.{name}"] for name in part.tensors()})
            for i, part in enumerate(self.parts)
        )
        return JoinedLinear(tuple(parts))

    @property
    def weight_bytes(self) -> int:
        """See `Linear`."""
        return sum(part.weight_bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class TransposedLinear(TensorFields):
    """A dense weight `[inputs, outputs]`, whose first inputs are a contiguous view."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        x = x.to(self.weight.dtype)
        return x @ self.weight if self.bias is None else torch.addmm(self.bias, x, self.weight)

    @property
    def weight_bytes(self) -> int:
        """See `Linear`."""
        return self.weight.nbytes


def first_outputs(linear: PlainLinear, count: int) -> PlainLinear:
    """The linear of the first `count` outputs, as a view."""
    bias = None if linear.bias is None else linear.bias.narrow(0, 0, count)
    return PlainLinear(linear.weight.narrow(0, 0, count), bias)


def first_inputs(linear: TransposedLinear, count: int) -> TransposedLinear:
    """The linear of the first `count` inputs, as a view; the bias is unchanged."""
    return replace(linear, weight=linear.weight.narrow(0, 0, count))


def split_outputs(linear: PlainLinear, outputs: Sequence[int]) -> list[PlainLinear]:
    """The linears of consecutive groups of outputs, as views."""
    linears, start = [], 0
    for count in outputs:
        bias = None if linear.bias is None else linear.bias.narrow(0, start, count)
        linears.append(PlainLinear(linear.weight.narrow(0, start, count), bias))
        start += count
    return linears
