"""Loops of tree attention, compiled by numba (LLVM) for the local x86 or ARM processor.

Owns memory access order and register blocking. Knows nothing of trees or torch: columns are plain indices.
Importing it requires numba; call it through `tree_kernels`, which falls back to torch without numba.

All arrays are fp32 and contiguous, indices int32: `queries` `[rows, heads, dim]`, `keys` and `values`
`[kv_heads, rows, dim]`, each shared by `heads / kv_heads` query heads. Each loop runs on the calling thread
with the GIL released.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.errors import NumbaError
from numba.extending import intrinsic, models, register_model

__all__ = ["NumbaError", "attention", "merge", "mix_dense", "mix_naive", "mix_optimized"]
__all__ += ["scores_dense", "scores_naive", "scores_optimized"]

LANES = 16
"""Floats per vector: four NEON registers, two AVX2 registers, or one AVX-512 register."""
BLOCK = 4 * LANES
"""Dimensions accumulated in registers at once."""
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_INT = ir.IntType(32)

_compiled = njit(nogil=True, error_model="numpy", cache=True)


class _Lanes(types.Type):
    """Numba type of a vector of `LANES` floats."""

    def __init__(self) -> None:
        super().__init__(name=f"float32x{LANES}")


_LANES = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _VECTOR.as_pointer())


@intrinsic
def _load(_: Any, array: Any, index: Any) -> Any:
    """Load `LANES` floats of a flat array from an index on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_address(context, builder, signature.args[0], *args), align=4)

    return _LANES(array, types.intp), generate


@intrinsic
def _store(_: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Write `LANES` floats to a flat array."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _address(context, builder, signature.args[0], *args[:2]), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, _LANES), generate


@intrinsic
def _spread(_: Any, number: Any) -> Any:
    """Broadcast a number to all lanes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        nothing = ir.Constant(_VECTOR, ir.Undefined)
        first = builder.insert_element(nothing, args[0], ir.Constant(_INT, 0))
        return builder.shuffle_vector(first, nothing, _chosen([0] * LANES))

    return _LANES(types.float32), generate


@intrinsic
def _fma(_: Any, total: Any, left: Any, right: Any) -> Any:
    """`total + left * right`, fused if the processor supports it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        product = builder.fmul(args[1], args[2], flags=["contract"])
        return builder.fadd(args[0], product, flags=["contract"])

    return _LANES(_LANES, _LANES, _LANES), generate


@intrinsic
def _sum(_: Any, lanes: Any) -> Any:
    """The sum of all lanes, by pairwise halving."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (lanes,), left = args, LANES
        while left > 1:
            left //= 2
            nothing = ir.Constant(lanes.type, ir.Undefined)
            low = builder.shuffle_vector(lanes, nothing, _chosen(range(left)))
            high = builder.shuffle_vector(lanes, nothing, _chosen(range(left, 2 * left)))
            lanes = builder.fadd(low, high)
        return builder.extract_element(lanes, ir.Constant(_INT, 0))

    return types.float32(_LANES), generate


def _chosen(lanes: Any) -> Any:
    return ir.Constant(ir.VectorType(_INT, len(lanes)), list(lanes))


@_compiled
def scores_naive(rows, cols, queries, keys, scale, out):
    """Score of each listed pair, accumulated in memory: `out` is `[heads, listed]`."""
    group = queries.shape[1] // keys.shape[0]
    for head in range(queries.shape[1]):
        for n in range(rows.shape[0]):
            out[head, n] = 0.0
            for d in range(queries.shape[2]):
                out[head, n] += queries[rows[n], head, d] * keys[head // group, cols[n], d] * scale


@_compiled
def mix_naive(rows, cols, weights, values, out):
    """Weighted values of the listed pairs, one dimension at a time: `out` is `[heads, rows, dim]`."""
    group = out.shape[0] // values.shape[0]
    out[:] = 0.0
    for head in range(out.shape[0]):
        for d in range(out.shape[2]):
            for n in range(rows.shape[0]):
                out[head, rows[n], d] += weights[head, n] * values[head // group, cols[n], d]


@_compiled
def _dot(a, i, b, j, count):
    """Dot product of `count` floats of two flat arrays; four accumulators hide the addition latency."""
    s0 = s1 = s2 = s3 = _spread(np.float32(0.0))
    d = 0
    while d + BLOCK <= count:
        s0 = _fma(s0, _load(a, i + d), _load(b, j + d))
        s1 = _fma(s1, _load(a, i + d + LANES), _load(b, j + d + LANES))
        s2 = _fma(s2, _load(a, i + d + 2 * LANES), _load(b, j + d + 2 * LANES))
        s3 = _fma(s3, _load(a, i + d + 3 * LANES), _load(b, j + d + 3 * LANES))
        d += BLOCK
    one = _spread(np.float32(1.0))
    total = _sum(_fma(_fma(s0, s1, one), _fma(s2, s3, one), one))
    while d < count:
        total += a[i + d] * b[j + d]
        d += 1
    return total


@_compiled
def scores_optimized(rows, cols, queries, keys, scale, out):
    """As `scores_naive`, along rows of queries and keys, accumulating in registers."""
    heads, dim = queries.shape[1], queries.shape[2]
    group, height = heads // keys.shape[0], keys.shape[1]
    q, k = queries.reshape(-1), keys.reshape(-1)
    for head in range(heads):
        for n in range(rows.shape[0]):
            i, j = (rows[n] * heads + head) * dim, (head // group * height + cols[n]) * dim
            out[head, n] = _dot(q, i, k, j, dim) * scale


@_compiled
def mix_optimized(starts, cols, weights, values, out):
    """As `mix_naive`, along rows of values, accumulating a block of each output row in registers."""
    heads, rows, dim = out.shape
    group, height = heads // values.shape[0], values.shape[1]
    v, flat = values.reshape(-1), out.reshape(-1)
    for head in range(heads):
        above = head // group * height
        for row in range(rows):
            first, last, place = starts[row], starts[row + 1], (head * rows + row) * dim
            d = 0
            while d + BLOCK <= dim:
                s0 = s1 = s2 = s3 = _spread(np.float32(0.0))
                for n in range(first, last):
                    weight, j = _spread(weights[head, n]), (above + cols[n]) * dim + d
                    s0 = _fma(s0, weight, _load(v, j))
                    s1 = _fma(s1, weight, _load(v, j + LANES))
                    s2 = _fma(s2, weight, _load(v, j + 2 * LANES))
                    s3 = _fma(s3, weight, _load(v, j + 3 * LANES))
                _store(flat, place + d, s0)
                _store(flat, place + d + LANES, s1)
                _store(flat, place + d + 2 * LANES, s2)
                _store(flat, place + d + 3 * LANES, s3)
                d += BLOCK
            while d < dim:
                total = np.float32(0.0)
                for n in range(first, last):
                    total += weights[head, n] * v[(above + cols[n]) * dim + d]
                flat[place + d] = total
                d += 1


@_compiled
def _dots(a, i, b, j, count, step):
    """Four dot products of `a` with `b` at four offsets `step` apart, loading `a` once."""
    s0 = s1 = s2 = s3 = _spread(np.float32(0.0))
    d = 0
    while d + LANES <= count:
        x = _load(a, i + d)
        s0 = _fma(s0, x, _load(b, j + d))
        s1 = _fma(s1, x, _load(b, j + d + step))
        s2 = _fma(s2, x, _load(b, j + d + 2 * step))
        s3 = _fma(s3, x, _load(b, j + d + 3 * step))
        d += LANES
    t0, t1, t2, t3 = _sum(s0), _sum(s1), _sum(s2), _sum(s3)
    while d < count:
        t0 += a[i + d] * b[j + d]
        t1 += a[i + d] * b[j + d + step]
        t2 += a[i + d] * b[j + d + 2 * step]
        t3 += a[i + d] * b[j + d + 3 * step]
        d += 1
    return t0, t1, t2, t3


@_compiled
def scores_dense(queries, keys, unseen, scale, out):
    """Scores of all pairs, then -inf where `unseen`: `out` is `[heads, rows, rows]`.

    Each loaded query is multiplied with four keys, as in a blocked matrix product.
    """
    rows, heads, dim = queries.shape
    group = heads // keys.shape[0]
    q, k = queries.reshape(-1), keys.reshape(-1)
    for head in range(heads):
        above = head // group * rows
        for row in range(rows):
            i = (row * heads + head) * dim
            col = 0
            while col + 4 <= rows:
                t0, t1, t2, t3 = _dots(q, i, k, (above + col) * dim, dim, dim)
                out[head, row, col] = t0 * scale
                out[head, row, col + 1] = t1 * scale
                out[head, row, col + 2] = t2 * scale
                out[head, row, col + 3] = t3 * scale
                col += 4
            while col < rows:
                out[head, row, col] = _dot(q, i, k, (above + col) * dim, dim) * scale
                col += 1
            for col in range(rows):
                if unseen[row, col]:
                    out[head, row, col] = -np.inf


@_compiled
def mix_dense(weights, values, out):
    """Values weighted by dense weights `[heads, rows, rows]`; each loaded value serves two rows."""
    heads, rows, dim = out.shape
    group = heads // values.shape[0]
    v, flat = values.reshape(-1), out.reshape(-1)
    for head in range(heads):
        above = head // group * rows
        for row in range(0, rows, 2):
            other = min(row + 1, rows - 1)
            upper, lower = (head * rows + row) * dim, (head * rows + other) * dim
            d = 0
            while d + BLOCK <= dim:
                s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = _spread(np.float32(0.0))
                for col in range(rows):
                    s, t = _spread(weights[head, row, col]), _spread(weights[head, other, col])
                    j = (above + col) * dim + d
                    x, y = _load(v, j), _load(v, j + LANES)
                    s0, t0, s1, t1 = _fma(s0, s, x), _fma(t0, t, x), _fma(s1, s, y), _fma(t1, t, y)
                    x, y = _load(v, j + 2 * LANES), _load(v, j + 3 * LANES)
                    s2, t2, s3, t3 = _fma(s2, s, x), _fma(t2, t, x), _fma(s3, s, y), _fma(t3, t, y)
                _store(flat, upper + d, s0)
                _store(flat, upper + d + LANES, s1)
                _store(flat, upper + d + 2 * LANES, s2)
                _store(flat, upper + d + 3 * LANES, s3)
                _store(flat, lower + d, t0)
                _store(flat, lower + d + LANES, t1)
                _store(flat, lower + d + 2 * LANES, t2)
                _store(flat, lower + d + 3 * LANES, t3)
                d += BLOCK
            while d < dim:
                s, t = np.float32(0.0), np.float32(0.0)
                for col in range(rows):
                    x = v[(above + col) * dim + d]
                    s, t = s + weights[head, row, col] * x, t + weights[head, other, col] * x
                flat[upper + d], flat[lower + d] = s, t
                d += 1


@_compiled
def attention(starts, rows, cols, queries, keys, values, scale, cap, scores, out, top, total):
    """Optimized scores, softmax weights per row and head, and optimized mix, not normalized.

    `cap` soft-caps scores by tanh; 0 disables it. `scores` is a buffer `[heads, listed]`. `top` and `total`,
    both `[heads, rows]`, receive the largest score (the lowest float if a row sees nothing) and the sum of
    weights.
    """
    scores_optimized(rows, cols, queries, keys, scale, scores)
    for head in range(out.shape[0]):
        for row in range(out.shape[1]):
            best, weighed = np.finfo(np.float32).min, np.float32(0.0)
            for n in range(starts[row], starts[row + 1]):
                if cap > 0.0:
                    scores[head, n] = np.tanh(scores[head, n] / cap) * cap
                best = max(best, scores[head, n])
            for n in range(starts[row], starts[row + 1]):
                scores[head, n] = np.exp(scores[head, n] - best)
                weighed += scores[head, n]
            top[head, row], total[head, row] = best, weighed
    mix_optimized(starts, cols, scores, values, out)


@_compiled
def merge(mixed, top, total, other_mixed, other_top, other_total, out):
    """Merge two partial attentions as computed by `attention`: `out` is `[rows, heads, dim]`."""
    rows, heads, dim = out.shape
    for row in range(rows):
        for head in range(heads):
            highest = max(top[head, row], other_top[head, row])
            ours, theirs = np.exp(top[head, row] - highest), np.exp(other_top[head, row] - highest)
            whole = np.float32(1.0) / (total[head, row] * ours + other_total[head, row] * theirs)
            ours, theirs = ours * whole, theirs * whole
            for d in range(dim):
                out[row, head, d] = mixed[head, row, d] * ours + other_mixed[head, row, d] * theirs
