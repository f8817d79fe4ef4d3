"""A linear over rounded weights that rounds its input rows before it multiplies.

Owns the product. Must not know which rounding rule it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor

from repro.models.transformer.linear import TensorFields


@dataclass(frozen=True, slots=True)
class BlockLinear(TensorFields):
    """A weight that was rounded in blocks, fp32 `[outputs, inputs]`, for rows rounded in blocks.

    Products are fp32, so that only rounding is studied: integer products with a scale per block give the same
    sums up to their order.

    Attributes:
        bits: stored bits per weight, scales included.
        rounding: rows `[rows, inputs]` to what their codes stand for; None leaves them as they are.
    """

    weight: Tensor
    bits: float
    rounding: Callable[[Tensor], Tensor] | None = None
    bias: Tensor | None = field(default=None)

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        x = x.to(self.weight.dtype)
        return F.linear(x if self.rounding is None else self.rounding(x), self.weight, self.bias)

    @property
    def weight_bytes(self) -> int:
        """See `Linear`: what the rounded weight would take as it is stored."""
        return round(self.weight.numel() * self.bits / 8)


def bits_per_weight(linears: Iterable[BlockLinear]) -> float:
    """Stored bits of several linears over all of their weights."""
    sizes = [(linear.weight.numel(), linear.bits) for linear in linears]
    return sum(count * bits for count, bits in sizes) / sum(count for count, _ in sizes)
