"""Rounding in groups of inputs, with one scale a group.

Owns the two rules, symmetric and asymmetric. Must not know whether it rounds weights or rows.
Where inputs are no multiple of the group, the last group is shorter.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

SMALLEST_STEP = 1e-5
"""As AWQ and SmoothQuant bound their scales."""

SCALE_BITS = 16
"""What a group's scale counts as; rounding uses it in fp32."""


def groups_of(inputs: int, group: int) -> int:
    """Groups of so many inputs."""
    return -(-inputs // group)


def grouped(x: Tensor, group: int) -> Tensor:
    """`[rows, inputs]` as `[rows, groups, group]`; a last short group is filled with its own last value."""
    missing = -x.shape[1] % group
    return F.pad(x, (0, missing), mode="replicate").view(x.shape[0], -1, group)


def symmetric(x: Tensor, bits: int, group: int) -> Tensor:
    """Rows rounded to whole multiples of each group's largest magnitude over 2^(bits-1) - 1."""
    groups = grouped(x, group)
    last = 2 ** (bits - 1) - 1
    step = (groups.abs().amax(2, keepdim=True) / last).clamp_min(SMALLEST_STEP)
    return _ungrouped((groups / step).round_().clamp_(-last, last) * step, x)


def asymmetric(x: Tensor, bits: int, group: int) -> Tensor:
    """Rows rounded to 2^bits steps between each group's smallest and largest value, as AWQ rounds weights."""
    groups = grouped(x, group)
    last = 2**bits - 1
    low, high = groups.aminmax(dim=2, keepdim=True)
    step = ((high - low) / last).clamp_min(SMALLEST_STEP)
    zero = (-(low / step).round()).clamp_(0, last)
    return _ungrouped(((groups / step).round_().add_(zero).clamp_(0, last) - zero) * step, x)


def _ungrouped(groups: Tensor, like: Tensor) -> Tensor:
    return groups.flatten(1)[:, : like.shape[1]].contiguous()
