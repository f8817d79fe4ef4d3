"""A linear with block-quantized weights that also quantizes its inputs (fake quantization).

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
    """A block-quantized weight, dequantized to fp32 `[outputs, inputs]`, with block-quantized inputs.

    Products are fp32, so only the rounding error is modeled: integer products with a scale per block give the
    same sums up to summation order.

    Attributes:
        bits: stored bits per weight, scales included.
        rounding: quantizes and dequantizes inputs `[rows, inputs]`; None leaves them unrounded.
    """

    weight: Tensor
    bits: float
    rounding: Callable[[Tensor], Tensor] | None = None
    bias: Tensor | None = field(default=None)

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        x = x.to(self.weight.dtype)
        return F.linear(x if self.rounding is None else self.rounding(x), self.weight, self.bias)


def bits_per_weight(linears: Iterable[BlockLinear]) -> float:
    """Mean stored bits per weight over several linears."""
    sizes = [(linear.weight.numel(), linear.bits) for linear in linears]
    return sum(count * bits for count, bits in sizes) / sum(count for count, _ in sizes)
