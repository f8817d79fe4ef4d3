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
        dense_keys: number of the pass's first keys that are treated like cached keys (dense attention), since
            most positions see them.
        to: the other processor.
    """

    share: float
    form: str = "columns"
    keys: float = 0.0
    dense_keys: int = 0
    to: str = CPU

    def __post_init__(self) -> None:
        for name, value in (("share", self.share), ("keys", self.keys)):
            if not 0 <= value <= 1:
                raise InputError(f"split.{name} is {value}; it is a share from 0 to 1")
        if self.dense_keys < 0:
            raise InputError(f"split.dense_keys is {self.dense_keys}; it is a number of keys from 0 on")
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
    visible_keys: Sequence[int]

    @classmethod
    def of(cls, prefixes: Sequence[Prefix], context_length: int) -> AttentionExtent:
        """Attention extent of a pass over uncached sequences, parents first."""
        visible_keys: dict[Prefix, int] = {}
        for prefix in prefixes:
            visible_keys[prefix] = 1 + (
                visible_keys.get(prefix.parent, 0) if prefix.parent is not None else 0
            )
        return cls(len(prefixes), context_length, list(visible_keys.values()))

    @property
    def pairs(self) -> int:
        """Query-key pairs within the pass."""
        return sum(self.visible_keys)

    def dense_pairs(self, dense_keys: int) -> int:
        """Query-key pairs with the first `dense_keys` of the pass's keys, counted dense."""
        return self.rows * min(dense_keys, self.rows)

    def sparse_pairs(self, dense_keys: int) -> int:
        """Query-key pairs with later keys; each query's first `dense_keys` visible keys count as dense."""
        return sum(max(0, key_count - dense_keys) for key_count in self.visible_keys)


def stages(model_cost: ModelCost, split: Split, extent: AttentionExtent) -> Iterator[Stage]:
    """Stages of one split layer; for Medusa heads, of all their residual blocks."""
    if model_cost.shape.medusa:
        return iter([split_work(split.share, "layer", *model_cost.layers(1, extent.rows, 0))])
    return (
        _columns(model_cost, split, extent)
        if split.form == "columns"
        else _megatron(model_cost, split, extent)
    )


def linear(
    model_cost: ModelCost, split: Split, row_count: int, weight_count: float, launch_count: float = 1.0
) -> Stage:
    """A linear of `weight_count` elements, split by columns."""
    return split_work(
        split.share,
        "layer",
        2.0 * row_count * weight_count,
        model_cost.weight_bytes(weight_count),
        launch_count,
    )


def _columns(model_cost: ModelCost, split: Split, extent: AttentionExtent) -> Iterator[Stage]:
    """Ghidorah: four linears and an attention, each a stage of its own."""
    shape = model_cost.shape
    out_weights = shape.hidden * shape.head_dim * shape.heads
    down_weights = shape.hidden * shape.intermediate
    yield linear(model_cost, split, extent.rows, shape.attention_weights - out_weights, 0.2)
    yield attention(model_cost, split, extent)
    yield linear(model_cost, split, extent.rows, out_weights, 0.2)
    yield linear(model_cost, split, extent.rows, shape.mlp_weights - down_weights, 0.2)
    yield linear(model_cost, split, extent.rows, down_weights, 0.2)


def attention(model_cost: ModelCost, split: Split, extent: AttentionExtent) -> Stage:
    """One layer's attention: cached keys split by `keys`, the pass's own on the other processor.

    The other processor's result is sent back with its maximum and sum and merged (online softmax).
    """
    shape, element_bytes = model_cost.shape, model_cost.stored.activation
    flops = shape.attention_flops(extent.rows, extent.context)
    size = shape.cache_elements(extent.context) * element_bytes
    dense_flops = 4.0 * extent.dense_pairs(split.dense_keys) * shape.heads * shape.head_dim
    sparse_flops = 4.0 * extent.sparse_pairs(split.dense_keys) * shape.heads * shape.head_dim
    merge_bytes = extent.rows * shape.heads * (shape.head_dim + STATISTICS) * 4.0
    own_bytes = shape.cache_elements(extent.rows) * element_bytes
    share = 1 - split.keys
    main = StagePiece("attention", False, flops * share + dense_flops, size * share + merge_bytes, 0.2)
    other_piece = StagePiece("attention", True, flops * split.keys, size * split.keys, 0.0)
    tree = StagePiece("sparse", True, sparse_flops, own_bytes + merge_bytes, 0.2)
    return [main, tree, *([other_piece] if split.keys else [])]


def _megatron(model_cost: ModelCost, split: Split, extent: AttentionExtent) -> Iterator[Stage]:
    """Megatron-LM: two blocks, each a pair of linears followed by a sum of both halves.

    Attention to the pass's own keys is dense under a mask.
    """
    shape = model_cost.shape
    key_count = extent.context + extent.rows
    flops, size = (
        shape.attention_flops(extent.rows, key_count),
        shape.cache_elements(key_count) * model_cost.stored.activation,
    )
    pair = linear(model_cost, split, extent.rows, shape.attention_weights, 0.4)
    heads = split_work(split.share, "attention", flops, size, 0.2)
    total = StagePiece(
        "reduce", False, 0.0, 3.0 * extent.rows * shape.hidden * model_cost.stored.activation, 0.1
    )
    yield [*pair, *heads]
    yield [total]
    yield linear(model_cost, split, extent.rows, shape.mlp_weights, 0.4)
    yield [total]


def split_work(share: float, kind: str, flops: float, moved_bytes: float, launch_count: float = 1.0) -> Stage:
    """Freely divisible work: the other processor gets `share` of it."""
    shares = ((False, 1 - share), (True, share))
    return [
        StagePiece(kind, is_other, flops * part, moved_bytes * part, launch_count)
        for is_other, part in shares
        if part > 0
    ]
