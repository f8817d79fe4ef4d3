"""Normalization of hidden states, always computed in fp32.

Owns the two norms of the supported families. Must not know where in a block they are used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from repro.libraries import F, Tensor, torch
from repro.models.transformer.linear import TensorFields


@dataclass(frozen=True, slots=True)
class RMSNorm(TensorFields):
    """RMSNorm, rewritten to need fewer operations.

    `weight` is the checkpoint's weight times sqrt(width), fp32 `[width]` or `[heads, width]`, and `floor` is
    sqrt(width * eps), so the divisor is hypot(norm, floor). This takes four operations instead of seven, and
    half the time on one row.
    """

    weight: Tensor
    floor: Tensor

    @classmethod
    def of(cls, weight: Tensor, eps: float) -> RMSNorm:
        """From a checkpoint's weight and epsilon."""
        width = weight.shape[-1]
        return cls(weight * math.sqrt(width), torch.tensor(math.sqrt(width * eps), device=weight.device))

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., width] -> [..., width]` in fp32."""
        x = x.float()
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x * self.weight).div_(torch.hypot(size, self.floor))


@dataclass(frozen=True, slots=True)
class LayerNorm(TensorFields):
    """LayerNorm with weight and bias, fp32 `[width]`."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., width] -> [..., width]` in fp32."""
        return F.layer_norm(x.float(), self.weight.shape, self.weight, self.bias, self.eps)


Norm = RMSNorm | LayerNorm
