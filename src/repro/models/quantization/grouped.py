"""Group-wise rounding with one scale per group of inputs.

Owns symmetric and asymmetric rounding. Must not know whether it rounds weights or activations.
If inputs are not a multiple of the group size, the last group is shorter.
"""

from __future__ import annotations

from typing import Annotated

import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor

Group = Annotated[int, Interval(ge=1, le=65_536)]
"""Inputs that share a scale."""

SMALLEST_STEP = 1e-5
"""Lower bound of scales, as in AWQ and SmoothQuant."""

SCALE_BITS = 16
"""Stored bits counted per group scale; rounding uses fp32 scales."""


def groups_of(inputs: int, group: int) -> int:
    """Number of groups of `inputs` inputs."""
    return -(-inputs // group)


def split_groups(x: Tensor, group: int) -> Tensor:
    """Reshape `[rows, inputs]` to `[rows, groups, group]`; a short last group repeats its last value."""
    missing = -x.shape[1] % group
    return F.pad(x, (0, missing), mode="replicate").view(x.shape[0], -1, group)


def symmetric(x: Tensor, bits: int, group: int) -> Tensor:
    """Round each group to multiples of its largest magnitude / (2^(bits-1) - 1)."""
    groups = split_groups(x, group)
    last = 2 ** (bits - 1) - 1
    step = (groups.abs().amax(2, keepdim=True) / last).clamp_min(SMALLEST_STEP)
    return _join_groups((groups / step).round_().clamp_(-last, last) * step, x)


def asymmetric(x: Tensor, bits: int, group: int) -> Tensor:
    """Round each group to 2^bits levels between its minimum and maximum, as AWQ rounds weights."""
    groups = split_groups(x, group)
    last = 2**bits - 1
    low, high = groups.aminmax(dim=2, keepdim=True)
    step = ((high - low) / last).clamp_min(SMALLEST_STEP)
    zero = (-(low / step).round()).clamp_(0, last)
    return _join_groups(((groups / step).round_().add_(zero).clamp_(0, last) - zero) * step, x)


def _join_groups(groups: Tensor, like: Tensor) -> Tensor:
    return groups.flatten(1)[:, : like.shape[1]].contiguous()
