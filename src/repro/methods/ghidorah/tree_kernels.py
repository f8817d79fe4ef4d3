"""Attention among the nodes of a token tree on the CPU: its sparsity pattern, and three ways to compute it.

Owns the pattern and the forms of the two products (Ghidorah sec. III-B 3). Knows nothing of tokens, the KV
cache or drafting; the loops themselves are in `tree_loops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from types import ModuleType
from typing import NamedTuple

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.libraries import Tensor, torch

FORMS = ("naive", "optimized", "dense")
CACHED_PATTERNS = 256
"""Number of cached patterns; a method's tree shape rarely changes between passes."""


@dataclass(frozen=True, eq=False)
class TreePattern:
    """Sparse attention pattern of a tree, built once per tree shape.

    Attributes:
        width: nodes of the tree.
        rows: query index of each listed pair, int32 `[pairs]` (with `cols`: COO).
        cols: key index of each listed pair, int32 `[pairs]`, ascending within a row.
        starts: offset of each row's pairs, and the end: int32 `[width + 1]` (with `cols`: CSR).
    """

    width: int
    rows: Tensor
    cols: Tensor
    starts: Tensor

    @classmethod
    def of_parents(cls, parents: Sequence[int]) -> TreePattern:
        """The pattern in which a node sees itself and its ancestors; a root's parent is -1.

        Raises:
            InputError: a parent does not come before its child.
        """
        mask = torch.eye(len(parents), dtype=torch.bool)
        for node, parent in enumerate(parents):
            if not -1 <= parent < node:
                raise InputError(f"node {node}'s parent is {parent}; it must come before, or be -1")
            if parent >= 0:
                mask[node] |= mask[parent]
        return cls.of_mask(mask)

    @classmethod
    def of_mask(cls, mask: Tensor) -> TreePattern:
        """The pattern of a mask, bool `[width, width]`, True where a row sees a column."""
        rows, cols = mask.cpu().nonzero(as_tuple=True)
        starts = torch.zeros(len(mask) + 1, dtype=torch.int32)
        starts[1:] = torch.bincount(rows, minlength=len(mask)).cumsum(0)
        return cls(len(mask), rows.to(torch.int32), cols.to(torch.int32), starts)

    @property
    def pair_count(self) -> int:
        """Number of query-key pairs; dense attention has `width * width`."""
        return len(self.rows)

    @cached_property
    def hidden_mask(self) -> Tensor:
        """The inverted mask, bool `[width, width]`."""
        out = torch.ones(self.width, self.width, dtype=torch.bool)
        out[self.rows.long(), self.cols.long()] = False
        return out

    def beyond(self, column_count: int) -> TreePattern:
        """The pattern without the first `column_count`; column indices are unchanged."""
        mask = ~self.hidden_mask
        mask[:, :column_count] = False
        return TreePattern.of_mask(mask)


def cached_pattern(mask: Tensor, column_count: int = 0) -> TreePattern:
    """The cached pattern of a bool mask `[width, width]` without its first `column_count`."""
    return _pattern_of_bytes(mask.cpu().numpy().tobytes(), len(mask), column_count)


@lru_cache(CACHED_PATTERNS)
def _pattern_of_bytes(content: bytes, width: int, column_count: int) -> TreePattern:
    mask = torch.frombuffer(bytearray(content), dtype=torch.bool).view(width, width)
    return TreePattern.of_mask(mask).beyond(column_count)


class Partial(NamedTuple):
    """Unnormalized attention over some of the slots.

    Attributes:
        mixed: values weighted by exp(score - top): `[heads, rows, head_dim]`.
        top: the largest score, or the lowest float if a row sees nothing: `[heads, rows, 1]`.
        total: the sum of the weights: `[heads, rows, 1]`.
    """

    mixed: Tensor
    top: Tensor
    total: Tensor


@dataclass(frozen=True)
class TreeKernel:
    """One implementation of the two products of tree attention, on one thread.

    `naive` processes the listed pairs one by one, accumulates in memory and reads values by column.
    `optimized` reads by row, in vectors. `dense` computes all pairs by torch's matrix product and masks them.

    Attributes:
        form: one of `FORMS`.
        loops: `tree_loops`; if None, torch computes the sparse forms, both in the same way.
    """

    form: str
    loops: ModuleType | None

    def scores(self, pattern: TreePattern, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
        """QK^T: `[heads, pairs]`; for `dense` `[heads, width, width]`, -inf at masked pairs.

        `queries` is fp32 `[width, heads, head_dim]`, `keys` fp32 `[kv_heads, width, head_dim]`.
        """
        heads = queries.shape[1]
        if self.form == "dense":
            table = torch.bmm(queries.transpose(0, 1), _of_heads(heads, keys).transpose(1, 2)).mul_(scale)
            return table.masked_fill_(pattern.hidden_mask, -torch.inf)
        if self.loops is None:
            return _torch_scores(pattern, queries, keys, scale)
        q, k = queries.contiguous().numpy(), keys.contiguous().numpy()
        out = torch.empty(heads, pattern.pair_count)
        score = self.loops.scores_naive if self.form == "naive" else self.loops.scores_optimized
        score(pattern.rows.numpy(), pattern.cols.numpy(), q, k, _fp32(scale), out.numpy())
        return out

    def mix(self, pattern: TreePattern, weights: Tensor, values: Tensor) -> Tensor:
        """AV: `[heads, width, head_dim]`; `weights` as from `scores`, `values` shaped like its `keys`."""
        if self.form == "dense":
            return torch.bmm(weights, _of_heads(len(weights), values))
        if self.loops is None:
            return _torch_mix(pattern, weights, values)
        w, v = weights.contiguous().numpy(), values.contiguous().numpy()
        out = torch.empty(len(w), pattern.width, values.shape[2])
        if self.form == "naive":
            self.loops.mix_naive(pattern.rows.numpy(), pattern.cols.numpy(), w, v, out.numpy())
        else:
            self.loops.mix_optimized(pattern.starts.numpy(), pattern.cols.numpy(), w, v, out.numpy())
        return out


def kernel(form: str, compiled: bool = True) -> TreeKernel:
    """The kernel of a form, compiled if possible; InputError for an unknown form."""
    if form not in FORMS:
        raise InputError(unknown("kernel", form, FORMS))
    return TreeKernel(form, loops() if compiled else None)


@cache
def loops() -> ModuleType | None:
    """The compiled loops; None if numba is missing or cannot compile for this processor."""
    try:
        from repro.methods.ghidorah import tree_loops
    except (ImportError, OSError):  # OSError: LLVM's library does not load on this system
        return None
    try:
        ones = torch.ones(1, 1, 1)
        _attend(tree_loops, TreePattern.of_parents([-1]), ones, ones, ones, 1.0, None)
    except (tree_loops.NumbaError, RuntimeError):  # RuntimeError: from LLVM, or no cache directory
        return None
    return tree_loops


def attend_tree(
    pattern: TreePattern,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    cap: float | None = None,
    compiled: bool = True,
) -> Partial:
    """Partial attention of a tree's nodes to each other, with the optimized products in one call.

    Shapes are those of `TreeKernel.scores`; `cap` soft-caps scores as `DecoderConfig.attention_cap` does.
    """
    module = loops() if compiled else None
    if module is not None:
        return _attend(module, pattern, queries, keys, values, scale, cap)
    scores = _torch_scores(pattern, queries, keys, scale)
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    rows = pattern.rows.long().expand_as(scores)
    floor = torch.finfo(torch.float32).min
    top_scores = scores.new_full((len(scores), pattern.width), floor).scatter_reduce(1, rows, scores, "amax")
    weights = torch.exp(scores - top_scores.gather(1, rows))
    total = torch.zeros_like(top_scores).scatter_add(1, rows, weights)
    return Partial(_torch_mix(pattern, weights, values), top_scores[..., None], total[..., None])


def _attend(
    module: ModuleType,
    pattern: TreePattern,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    cap: float | None,
) -> Partial:
    heads = queries.shape[1]
    outputs = torch.empty(heads, pattern.width, values.shape[2])
    scores = torch.empty(heads, pattern.pair_count)
    top, total = torch.empty(2, heads, pattern.width)
    module.attention(
        *(index.numpy() for index in (pattern.starts, pattern.rows, pattern.cols)),
        *(rows.contiguous().numpy() for rows in (queries, keys, values)),
        _fp32(scale),
        _fp32(cap or 0.0),
        *(out.numpy() for out in (scores, outputs, top, total)),
    )
    return Partial(outputs, top[..., None], total[..., None])


def merge(partials: Sequence[Partial], compiled: bool = True) -> Tensor:
    """Merge partial attentions over disjoint slots (online softmax): `[rows, heads, head_dim]`.

    All parts are on one device, and every row sees at least one slot of some part.
    """
    mixed, top, total = partials[0]
    module = loops() if compiled else None
    if module is not None and len(partials) == 2 and mixed.device.type == "cpu":
        first, second = (
            [part.numpy() for part in (p.mixed, p.top[..., 0], p.total[..., 0])] for p in partials
        )
        out = torch.empty(mixed.shape[1], mixed.shape[0], mixed.shape[2])
        module.merge(*first, *second, out.numpy())
        return out
    for part in partials[1:]:
        maxima = torch.maximum(top, part.top)
        factor, part_factor = torch.exp(top - maxima), torch.exp(part.top - maxima)
        mixed, total = mixed * factor + part.mixed * part_factor, total * factor + part.total * part_factor
        top = maxima
    return (mixed / total).transpose(0, 1)


def _of_heads(head_count: int, rows: Tensor) -> Tensor:
    """Keys or values `[kv_heads, rows, head_dim]` of each query head: `[head_count, rows, head_dim]`."""
    return rows if len(rows) == head_count else rows.repeat_interleave(head_count // len(rows), 0)


def _torch_scores(pattern: TreePattern, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """Scores of the listed pairs, `[heads, pairs]`."""
    query_rows = queries.transpose(0, 1)[:, pattern.rows.long()]
    key_rows = _of_heads(len(query_rows), keys)[:, pattern.cols.long()]
    return (query_rows * key_rows).sum(-1) * scale


def _torch_mix(pattern: TreePattern, weights: Tensor, values: Tensor) -> Tensor:
    """Values weighted by the listed weights, `[heads, width, head_dim]`."""
    pair_values = _of_heads(len(weights), values)[:, pattern.cols.long()]
    out = values.new_zeros(len(weights), pattern.width, values.shape[2])
    return out.index_add(1, pattern.rows.long(), weights[..., None] * pair_values)


def _fp32(number: float) -> object:
    """A NumPy fp32 scalar; a Python float would make the loops accumulate in double."""
    return torch.tensor(number, dtype=torch.float32).numpy()[()]
