"""RoPE as multiplication by complex factors.

Owns frequencies and rotations. Query and key projections are stored with the two dimensions of a rotated pair
adjacent (`interleave`), so a rotation is one complex multiplication. The order does not affect the scores.
"""

from __future__ import annotations

import math

from repro.libraries import Tensor, torch
from repro.models.transformer.config import Rope


def frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Radians per position of each pair of a head, `[head_dim / 2]`; 0 for pairs that are not rotated."""
    rotated = rope.rotated_dims(head_dim)
    pairs = 1.0 / rope.theta ** (torch.arange(0, rotated, 2, dtype=torch.int64).float() / rotated)
    scaled = _STRETCH[rope.kind](rope, pairs)
    return torch.cat((scaled, torch.zeros((head_dim - rotated) // 2)))


def rotations(frequency: Tensor, positions: Tensor) -> Tensor:
    """The complex factor of every pair at each position, `[rows, 1, head_dim / 2]`."""
    angles = positions.to(torch.float32)[:, None, None] * frequency
    return torch.polar(torch.ones_like(angles), angles)


def interleave(rope: Rope | None, head_dim: int) -> Tensor:
    """Permutation of a head's dimensions that makes each rotated pair adjacent, `[head_dim]`."""
    order = torch.arange(head_dim)
    if rope is None:
        return order
    rotated = rope.rotated_dims(head_dim)
    pairs = order[:rotated].view(2, rotated // 2).t().reshape(-1)
    return torch.cat((pairs, order[rotated:]))


def _default(rope: Rope, pairs: Tensor) -> Tensor:
    return pairs


def _linear(rope: Rope, pairs: Tensor) -> Tensor:
    return pairs / rope.factor


def _llama3(rope: Rope, pairs: Tensor) -> Tensor:
    """Llama 3.1: keep high frequencies, divide low ones by the factor, interpolate in between."""
    turns = rope.original_positions * pairs / (2 * math.pi)
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return share * pairs + (1.0 - share) * pairs / rope.factor


def _longrope(rope: Rope, pairs: Tensor) -> Tensor:
    return pairs / torch.tensor(rope.factors)


_STRETCH = {"default": _default, "linear": _linear, "llama3": _llama3, "longrope": _longrope}
