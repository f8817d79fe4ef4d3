"""How the work of a model's layer is divided between two processors that share their memory.

Knows nothing of devices, of what a processor takes for its part, or of how a good division is found.
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
"""Numbers a query head that merging two parts of an attention takes beside its values: maximum and sum."""


@dataclass(frozen=True)
class Split:
    """A division between the processor that a model is placed on and another one.

    `columns` is Ghidorah's (sec. III-B): every linear by its outputs, each attention in the keys of the cache
    and those of the pass. `megatron` divides two linears at a time, the first by outputs and the second by
    inputs, attention by heads, and adds the halves up.

    Attributes:
        share: of every linear's columns, or of the heads, that the other processor computes.
        form: `columns` or `megatron`.
        keys: share of the cached keys that the other processor attends to, in the form `columns`; it always
            attends to the pass's own keys, as far as rows see them.
        left: of the pass's own keys the first ones that join the cached keys, where most rows see them.
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
    """What one processor does in a stage.

    Attributes:
        kind: of its op.
        other: whether it is the other processor's.
        flops: to compute.
        bytes: to move.
        launches: its part of a layer's launch.
    """

    kind: str
    other: bool
    flops: float
    bytes: float
    launches: float


Stage = Sequence[StagePiece]
"""Pieces that run side by side, a processor's in their order; the next stage reads what all of them wrote."""


class AttentionExtent(NamedTuple):
    """What the rows of a pass attend to: their number, keys in the cache, and how many of the pass's own keys
    each sees, in the order of the rows."""

    rows: int
    context: int
    own: Sequence[int]

    @property
    def pairs(self) -> int:
        """Pairs of a row and a key of the same pass."""
        return sum(self.own)

    def joined(self, left: int) -> int:
        """Pairs with the first `left` of the pass's keys, counted dense."""
        return self.rows * min(left, self.rows)

    def sparse(self, left: int) -> int:
        """Pairs with the keys behind those: each row sees the earliest keys, its ancestors, first."""
        return sum(max(0, seen - left) for seen in self.own)


def extent(missing: Sequence[Prefix], context: int) -> AttentionExtent:
    """What a pass over missing sequences, parents first, attends to."""
    seen: dict[Prefix, int] = {}
    for prefix in missing:
        seen[prefix] = 1 + (seen.get(prefix.parent, 0) if prefix.parent is not None else 0)
    return AttentionExtent(len(missing), context, list(seen.values()))


def stages(model_cost: ModelCost, split: Split, look: AttentionExtent) -> Iterator[Stage]:
    """One layer, divided; of Medusa heads all that is before their projections."""
    if model_cost.shape.medusa:
        return iter([shares(split.share, "layer", *model_cost.layers(1, look.rows, 0))])
    return (
        _columns(model_cost, split, look) if split.form == "columns" else _megatron(model_cost, split, look)
    )


def linear(model_cost: ModelCost, split: Split, rows: int, weights: float, launches: float = 1.0) -> Stage:
    """A linear of so many weights divided by its columns."""
    return shares(split.share, "layer", 2.0 * rows * weights, model_cost.weight_bytes(weights), launches)


def _columns(model_cost: ModelCost, split: Split, look: AttentionExtent) -> Iterator[Stage]:
    """Ghidorah: four linears and an attention, each of which needs all of what came before."""
    shape = model_cost.shape
    out = shape.hidden * shape.head_dim * shape.heads
    down = shape.hidden * shape.intermediate
    yield linear(model_cost, split, look.rows, shape.attention_weights - out, 0.2)
    yield attention(model_cost, split, look)
    yield linear(model_cost, split, look.rows, out, 0.2)
    yield linear(model_cost, split, look.rows, shape.mlp_weights - down, 0.2)
    yield linear(model_cost, split, look.rows, down, 0.2)


def attention(model_cost: ModelCost, split: Split, look: AttentionExtent) -> Stage:
    """One layer's attention: cached keys on both as `keys` says, the pass's own on the other processor.

    What the other one found goes back with its maximum and its sum, by which the two are merged.
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
    """Megatron-LM: two blocks, each a pair of linears, and after each a sum of both halves.

    Heads attend to the pass's own keys as to all others, under a mask.
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
    """Work divided at any place: a share of it is the other processor's."""
    both = ((False, 1 - share), (True, share))
    return [StagePiece(kind, other, flops * part, moved * part, launches) for other, part in both if part > 0]
