"""Normalization of hidden rows, always computed in fp32.

Owns the two norms of the supported families. Knows nothing of where in a block they stand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repro.core.late import late
from repro.models.transformer.linear import TensorFields

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
else:
    torch = late("torch")
    F = late("torch.nn.functional")


@dataclass(frozen=True, slots=True)
class RMSNorm(TensorFields):
    """Rows over their root mean square, times a weight.

    The mean is folded away: `weight` holds the checkpoint's weight times sqrt(width), fp32 `[width]` or
    `[heads, width]`, and `floor` is sqrt(width * eps), so that the divisor is hypot(norm, floor): four
    cheap operations where the textbook form takes seven, and half the time on one row.
    """

    weight: Tensor
    floor: Tensor

    @classmethod
    def of(cls, weight: Tensor, eps: float) -> RMSNorm:
        """The norm with a checkpoint's weight and epsilon."""
        width = weight.shape[-1]
        return cls(weight * math.sqrt(width), torch.tensor(math.sqrt(width * eps), device=weight.device))

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., width] -> [..., width]` in fp32."""
        x = x.float()
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x * self.weight).div_(torch.hypot(size, self.floor))


@dataclass(frozen=True, slots=True)
class LayerNorm(TensorFields):
    """Rows without their mean over their deviation, times weight plus bias, fp32 `[width]`."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., width] -> [..., width]` in fp32."""
        return F.layer_norm(x.float(), self.weight.shape, self.weight, self.bias, self.eps)


Norm = RMSNorm | LayerNorm
