"""Group-wise rounding with one scale per group of inputs, and linears with block-quantized weights.

Owns symmetric and asymmetric rounding, and the product whose inputs may be rounded too (fake quantization).
Must not know whether groups are of weights or activations, nor other rules that blocks are rounded by. If
inputs are not a multiple of the group size, the last group is shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated

import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor

from repro.models.transformer.linear import TensorFields

Group = Annotated[int, Interval(ge=1, le=65_536)]
"""Inputs that share a scale."""

SMALLEST_STEP = 1e-5
"""Lower bound of scales, as in AWQ and SmoothQuant."""

SCALE_BITS = 16
"""Stored bits counted per group scale; rounding uses fp32 scales."""


def groups_of(input_count: int, group: int) -> int:
    """Number of groups of `input_count` inputs."""
    return -(-input_count // group)


def split_groups(x: Tensor, group: int) -> Tensor:
    """Reshape `[rows, inputs]` to `[rows, groups, group]`; a short last group repeats its last value."""
    padding = -x.shape[1] % group
    return F.pad(x, (0, padding), mode="replicate").view(x.shape[0], -1, group)


def symmetric(x: Tensor, bits: int, group: int) -> Tensor:
    """Round each group to multiples of its largest magnitude / (2^(bits-1) - 1)."""
    groups = split_groups(x, group)
    max_code = 2 ** (bits - 1) - 1
    step = (groups.abs().amax(2, keepdim=True) / max_code).clamp_min(SMALLEST_STEP)
    return _join_groups((groups / step).round_().clamp_(-max_code, max_code) * step, x)


def asymmetric(x: Tensor, bits: int, group: int) -> Tensor:
    """Round each group to 2^bits levels between its minimum and maximum, as AWQ rounds weights."""
    groups = split_groups(x, group)
    max_code = 2**bits - 1
    lows, highs = groups.aminmax(dim=2, keepdim=True)
    step = ((highs - lows) / max_code).clamp_min(SMALLEST_STEP)
    zero = (-(lows / step).round()).clamp_(0, max_code)
    return _join_groups(((groups / step).round_().add_(zero).clamp_(0, max_code) - zero) * step, x)


def _join_groups(groups: Tensor, original: Tensor) -> Tensor:
    return groups.flatten(1)[:, : original.shape[1]].contiguous()


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
    return sum(weight_count * bits for weight_count, bits in sizes) / sum(
        weight_count for weight_count, _ in sizes
    )
