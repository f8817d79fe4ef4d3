"""Normalization of hidden rows, always computed in fp32.

Owns the two norms of the supported families. Knows nothing of where in a block they stand.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from repro.models.linear import Held


@dataclass(frozen=True, slots=True)
class RMSNorm(Held):
    """Rows over their root mean square, times an fp32 weight `[width]` or `[heads, width]`."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., width] -> [..., width]` in fp32."""
        x = x.float()
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)).mul_(self.weight)


@dataclass(frozen=True, slots=True)
class LayerNorm(Held):
    """Rows without their mean over their deviation, times weight plus bias, fp32 `[width]`."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """`[..., width] -> [..., width]` in fp32."""
        return F.layer_norm(x.float(), self.weight.shape, self.weight, self.bias, self.eps)


Norm = RMSNorm | LayerNorm
