"""Linears split over several torch devices.

Owns how weights are cut and how partial outputs are combined. Knows nothing of layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Self

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.libraries import Tensor, torch
from repro.models.transformer.linear import Linear, PlainLinear, as_plain, fastest_linear

WAYS = ("columns", "rows")


class Part(NamedTuple):
    """A device and its share of the outputs or inputs, from 0 to 1."""

    device: torch.device
    share: float


class LinearPart(NamedTuple):
    """The linear of one part, which covers the outputs or inputs `first:last`."""

    linear: Linear
    device: torch.device
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _Divided:
    """Parts of one weight; accelerators come first, since their kernels run asynchronously."""

    parts: tuple[LinearPart, ...]
    outputs: int

    def tensors(self) -> dict[str, Tensor]:
        """Raises TypeError: a split weight cannot be stored."""
        raise TypeError("a divided weight cannot be stored; store the whole one")

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """Raises TypeError: see `tensors`."""
        raise TypeError("a divided weight is made of no stored tensors; divide another linear")

    @property
    def weight_bytes(self) -> int:
        """See `Linear`."""
        return sum(part.linear.weight_bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class ColumnSplit(_Divided):
    """Each part reads the whole input and writes its own outputs, without a reduction (Ghidorah III-B 1).

    A part has the same columns of each of `blocks` equal blocks of outputs.
    """

    blocks: int = 1

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        # Send all inputs before launching kernels, since a later copy would wait for them.
        inputs = [x.to(part.device) for part in self.parts]
        partials = [part.linear(rows) for part, rows in zip(self.parts, inputs, strict=True)]
        # Deviation: torch has no memory that two devices can write, so outputs are copied into place.
        out = torch.empty(len(x), self.outputs, dtype=partials[0].dtype, device=x.device)
        columns = out.view(len(x), self.blocks, -1)
        for part, y in zip(self.parts, partials, strict=True):
            columns[:, :, part.first : part.last] = y.view(len(x), self.blocks, -1).to(x.device)
        return out


@dataclass(frozen=True, slots=True)
class RowSplit(_Divided):
    """Each part reads its own inputs, and partial outputs are summed (Megatron's all-reduce)."""

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        inputs = [x[:, part.first : part.last].to(part.device) for part in self.parts]
        partials = [part.linear(rows) for part, rows in zip(self.parts, inputs, strict=True)]
        total = partials[0].to(x.device)
        for y in partials[1:]:
            total = total + y.to(x.device)
        return total


def split_linear(
    linear: Linear, parts: Sequence[Part], way: str = "columns", blocks: int = 1
) -> ColumnSplit | RowSplit:
    """Split a linear over devices; empty parts are left out.

    Args:
        linear: a dense weight that is not packed.
        parts: devices and shares, which sum to 1.
        by: `columns` splits outputs, `rows` inputs.
        blocks: blocks of outputs that are split alike; 2 where gate and up are one weight, so that a part has
            matching columns of both.

    Raises:
        InputError: a packed or quantized weight; shares that do not sum to 1; an unknown `by`.
    """
    dense = as_plain(linear)
    if way not in WAYS:
        raise InputError(unknown("way to divide a linear", way, WAYS))
    shares = [part.share for part in parts]
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise InputError(f"the shares of a divided linear are {shares}; they are 0 or more and make up 1")
    outputs, inputs = dense.weight.shape
    size = inputs if way == "rows" else outputs // blocks
    edges = [round(size * share) for share in accumulate(shares, initial=0.0)]
    cuts = [(p.device, a, b) for p, a, b in zip(parts, edges, edges[1:], strict=False) if a < b]
    cuts.sort(key=lambda cut: cut[0].type == "cpu")
    if way == "rows":
        return RowSplit(tuple(_rows(dense, *cut, first=cut == cuts[0]) for cut in cuts), outputs)
    return ColumnSplit(tuple(_columns(dense, blocks, *cut) for cut in cuts), outputs, blocks)


def _columns(linear: PlainLinear, blocks: int, device: torch.device, first: int, last: int) -> LinearPart:
    weight, bias = linear.weight.unflatten(0, (blocks, -1))[:, first:last].flatten(0, 1), linear.bias
    if bias is not None:
        # With one column per block, flatten returns a strided view, which packed kernels misread.
        bias = bias.unflatten(0, (blocks, -1))[:, first:last].flatten().contiguous()
    return _part(weight, bias, device, first, last)


def _rows(linear: PlainLinear, device: torch.device, first_in: int, last_in: int, first: bool) -> LinearPart:
    """A part of the inputs; only the first part has the bias, so it is added once."""
    return _part(
        linear.weight[:, first_in:last_in], linear.bias if first else None, device, first_in, last_in
    )


def _part(weight: Tensor, bias: Tensor | None, device: torch.device, first: int, last: int) -> LinearPart:
    linear = PlainLinear(weight.to(device).contiguous(), None if bias is None else bias.to(device))
    return LinearPart(fastest_linear(linear), device, first, last)
