"""Divides the work of a layer between two processors that share memory.

Knows nothing of devices, of processor speeds, or of how a good split is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.device.op import CPU, PROCESSORS
from repro.models.costs.model_cost import ModelCost
from repro.models.tokens.prefix import Prefix

FORMS = ("columns", "megatron")
STATISTICS = 2
"""Softmax statistics per query head for merging two partial attentions: maximum and sum."""


@dataclass(frozen=True)
class Split:
    """A split between the processor that a model is placed on and another one.

    `columns` is Ghidorah's (sec. III-B): every linear is split by outputs, attention by keys (cached keys and
    the pass's own). `megatron` splits linears in pairs, the first by outputs and the second by inputs,
    attention by heads, and sums the halves.

    Attributes:
        share: share of every linear's columns, or of the heads, that the other processor computes.
        form: `columns` or `megatron`.
        keys: share of the cached keys that the other processor attends to (`columns` only); it also computes
            the sparse attention to the pass's own keys.
        left: number of the pass's first keys that are treated like cached keys (dense attention), since most
            positions see them.
        to: the other processor.
    """

    share: float
    form: str = "columns"
    keys: float = 0.0
    left: int = 0
    to: str = CPU

    def __post_init__(self) -> None:
        for name, value in (("share", self.share), ("keys", self.keys)):
            if not 0 <= value <= 1:
                raise InputError(f"split.{name} is {value}; it is a share from 0 to 1")
        if self.left < 0:
            raise InputError(f"split.left is {self.left}; it is a number of keys from 0 on")
        if self.form not in FORMS:
            raise InputError(unknown("form of a split", self.form, FORMS))
        if self.to not in PROCESSORS:
            raise InputError(unknown("processor", self.to, PROCESSORS))


class StagePiece(NamedTuple):
    """Work of one processor in a stage.

    Attributes:
        kind: kind of the op.
        other: whether the other processor runs it.
        flops: FLOPs.
        bytes: bytes moved.
        launches: fraction of a layer's launch overhead.
    """

    kind: str
    other: bool
    flops: float
    bytes: float
    launches: float


Stage = Sequence[StagePiece]
"""Pieces that run concurrently, in order on each processor; the next stage depends on all of them."""


class AttentionExtent(NamedTuple):
    """Attention extent of a pass: its positions, cached keys, and visible own keys of each position."""

    rows: int
    context: int
    own: Sequence[int]

    @property
    def pairs(self) -> int:
        """Query-key pairs within the pass."""
        return sum(self.own)

    def joined(self, left: int) -> int:
        """Query-key pairs with the first `left` of the pass's keys, counted dense."""
        return self.rows * min(left, self.rows)

    def sparse(self, left: int) -> int:
        """Query-key pairs with later keys; each query's first `left` visible keys count as joined."""
        return sum(max(0, seen - left) for seen in self.own)


def extent(missing: Sequence[Prefix], context: int) -> AttentionExtent:
    """Attention extent of a pass over uncached sequences, parents first."""
    seen: dict[Prefix, int] = {}
    for prefix in missing:
        seen[prefix] = 1 + (seen.get(prefix.parent, 0) if prefix.parent is not None else 0)
    return AttentionExtent(len(missing), context, list(seen.values()))


def stages(model_cost: ModelCost, split: Split, look: AttentionExtent) -> Iterator[Stage]:
    """Stages of one split layer; for Medusa heads, of all their residual blocks."""
    if model_cost.shape.medusa:
        return iter([shares(split.share, "layer", *model_cost.layers(1, look.rows, 0))])
    return (
        _columns(model_cost, split, look) if split.form == "columns" else _megatron(model_cost, split, look)
    )


def linear(model_cost: ModelCost, split: Split, rows: int, weights: float, launches: float = 1.0) -> Stage:
    """A linear of `weights` elements, split by columns."""
    return shares(split.share, "layer", 2.0 * rows * weights, model_cost.weight_bytes(weights), launches)


def _columns(model_cost: ModelCost, split: Split, look: AttentionExtent) -> Iterator[Stage]:
    """Ghidorah: four linears and an attention, each a stage of its own."""
    shape = model_cost.shape
    out = shape.hidden * shape.head_dim * shape.heads
    down = shape.hidden * shape.intermediate
    yield linear(model_cost, split, look.rows, shape.attention_weights - out, 0.2)
    yield attention(model_cost, split, look)
    yield linear(model_cost, split, look.rows, out, 0.2)
    yield linear(model_cost, split, look.rows, shape.mlp_weights - down, 0.2)
    yield linear(model_cost, split, look.rows, down, 0.2)


def attention(model_cost: ModelCost, split: Split, look: AttentionExtent) -> Stage:
    """One layer's attention: cached keys split by `keys`, the pass's own on the other processor.

    The other processor's result is sent back with its maximum and sum and merged (online softmax).
    """
    shape, width = model_cost.shape, model_cost.stored.activation
    flops, moved = shape.attention_flops(look.rows, look.context), shape.cache_elements(look.context) * width
    joined = 4.0 * look.joined(split.left) * shape.heads * shape.head_dim
    sparse = 4.0 * look.sparse(split.left) * shape.heads * shape.head_dim
    merged = look.rows * shape.heads * (shape.head_dim + STATISTICS) * 4.0
    own = shape.cache_elements(look.rows) * width
    here = StagePiece(
        "attention", False, flops * (1 - split.keys) + joined, moved * (1 - split.keys) + merged, 0.2
    )
    there = StagePiece("attention", True, flops * split.keys, moved * split.keys, 0.0)
    tree = StagePiece("sparse", True, sparse, own + merged, 0.2)
    return [here, tree, *([there] if split.keys else [])]


def _megatron(model_cost: ModelCost, split: Split, look: AttentionExtent) -> Iterator[Stage]:
    """Megatron-LM: two blocks, each a pair of linears followed by a sum of both halves.

    Attention to the pass's own keys is dense under a mask.
    """
    shape = model_cost.shape
    keys = look.context + look.rows
    flops, moved = (
        shape.attention_flops(look.rows, keys),
        shape.cache_elements(keys) * model_cost.stored.activation,
    )
    pair = linear(model_cost, split, look.rows, shape.attention_weights, 0.4)
    heads = shares(split.share, "attention", flops, moved, 0.2)
    total = StagePiece(
        "reduce", False, 0.0, 3.0 * look.rows * shape.hidden * model_cost.stored.activation, 0.1
    )
    yield [*pair, *heads]
    yield [total]
    yield linear(model_cost, split, look.rows, shape.mlp_weights, 0.4)
    yield [total]


def shares(share: float, kind: str, flops: float, moved: float, launches: float = 1.0) -> Stage:
    """Freely divisible work: the other processor gets `share` of it."""
    both = ((False, 1 - share), (True, share))
    return [StagePiece(kind, other, flops * part, moved * part, launches) for other, part in both if part > 0]
