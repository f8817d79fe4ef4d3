"""Loops of tree attention, compiled by numba (LLVM) for the local processor.

Owns memory access order. Knows nothing of trees or torch: columns are plain indices. Importing it requires
numba; call it through `tree_kernels`, which falls back to torch without numba.

All arrays are fp32 and contiguous, indices int32: `queries` `[rows, heads, dim]`, `keys` and `values`
`[kv_heads, rows, dim]`, each shared by `heads / kv_heads` query heads. Each loop runs on the calling thread
with the GIL released. The optimized ones may sum in any order, which lets LLVM use vectors.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.core.errors import NumbaError

__all__ = ["NumbaError", "attention", "merge", "mix_naive", "mix_optimized"]
__all__ += ["scores_naive", "scores_optimized"]

_compiled = njit(nogil=True, error_model="numpy", cache=True)
_vectorized = njit(nogil=True, error_model="numpy", cache=True, fastmath={"contract", "reassoc"})


@_compiled
def scores_naive(rows, cols, queries, keys, scale, out):
    """Score of each listed pair, accumulated in memory: `out` is `[heads, pairs]`."""
    group_size = queries.shape[1] // keys.shape[0]
    for head in range(queries.shape[1]):
        for n in range(rows.shape[0]):
            out[head, n] = 0.0
            for d in range(queries.shape[2]):
                out[head, n] += queries[rows[n], head, d] * keys[head // group_size, cols[n], d] * scale


@_compiled
def mix_naive(rows, cols, weights, values, out):
    """Weighted values of the listed pairs, one dimension at a time: `out` is `[heads, rows, dim]`."""
    group_size = out.shape[0] // values.shape[0]
    out[:] = 0.0
    for head in range(out.shape[0]):
        for d in range(out.shape[2]):
            for n in range(rows.shape[0]):
                out[head, rows[n], d] += weights[head, n] * values[head // group_size, cols[n], d]


@_vectorized
def _dot(a, b):
    total = np.float32(0.0)
    for d in range(a.shape[0]):
        total += a[d] * b[d]
    return total


@_vectorized
def scores_optimized(rows, cols, queries, keys, scale, out):
    """As `scores_naive`, along rows of queries and keys, accumulating in registers."""
    group_size = queries.shape[1] // keys.shape[0]
    for head in range(queries.shape[1]):
        for n in range(rows.shape[0]):
            out[head, n] = _dot(queries[rows[n], head], keys[head // group_size, cols[n]]) * scale


@_vectorized
def mix_optimized(starts, cols, weights, values, out):
    """As `mix_naive`, along rows of values."""
    group_size = out.shape[0] // values.shape[0]
    for head in range(out.shape[0]):
        for row in range(out.shape[1]):
            mixed = out[head, row]
            mixed[:] = 0.0
            for n in range(starts[row], starts[row + 1]):
                weight, value = weights[head, n], values[head // group_size, cols[n]]
                for d in range(mixed.shape[0]):
                    mixed[d] += weight * value[d]


@_compiled
def attention(starts, rows, cols, queries, keys, values, scale, cap, scores, out, top, total):
    """Optimized scores, softmax weights per row and head, and optimized mix, not normalized.

    `cap` soft-caps scores by tanh; 0 disables it. `scores` is a buffer `[heads, pairs]`. `top` and `total`,
    both `[heads, rows]`, receive the largest score (the lowest float if a row sees nothing) and the sum of
    weights.
    """
    scores_optimized(rows, cols, queries, keys, scale, scores)
    for head in range(out.shape[0]):
        for row in range(out.shape[1]):
            best, weight_sum = np.finfo(np.float32).min, np.float32(0.0)
            for n in range(starts[row], starts[row + 1]):
                if cap > 0.0:
                    scores[head, n] = np.tanh(scores[head, n] / cap) * cap
                best = max(best, scores[head, n])
            for n in range(starts[row], starts[row + 1]):
                scores[head, n] = np.exp(scores[head, n] - best)
                weight_sum += scores[head, n]
            top[head, row], total[head, row] = best, weight_sum
    mix_optimized(starts, cols, scores, values, out)


@_compiled
def merge(mixed, top, total, other_mixed, other_top, other_total, out):
    """Merge two partial attentions as computed by `attention`: `out` is `[rows, heads, dim]`."""
    row_count, heads, dim = out.shape
    for row in range(row_count):
        for head in range(heads):
            highest = max(top[head, row], other_top[head, row])
            factor, other_factor = np.exp(top[head, row] - highest), np.exp(other_top[head, row] - highest)
            scale = np.float32(1.0) / (total[head, row] * factor + other_total[head, row] * other_factor)
            factor, other_factor = factor * scale, other_factor * scale
            for d in range(dim):
                out[row, head, d] = mixed[head, row, d] * factor + other_mixed[head, row, d] * other_factor
