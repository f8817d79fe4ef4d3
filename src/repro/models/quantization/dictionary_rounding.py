"""Rounds vertical slices (shards) of decoder layers to dictionaries of values, each slice to its own width.

As STI (Guo et al., ASPLOS 2023) does. Owns the weights of a shard and their rounding. Knows nothing of how
widths are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from repro.core.errors import InputError
from repro.libraries import Tensor, torch
from repro.models.transformer import weights
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import Linear, PlainLinear, as_plain, fastest_linear

DENSE = ("float32", "bfloat16")
"""Dtypes whose weights can be sharded."""

FULL = 32
"""Width that marks an unrounded shard, whatever its stored precision."""

OUTLIERS = 0.001
"""Share of a shard's weights that stay unrounded, about as in GOBO, whose rounding STI uses."""

STEPS = 50
"""Iterations of the dictionary search; more lower no error by 1 %."""


class WeightPiece(NamedTuple):
    """A block of one linear's weight."""

    linear: str
    rows: slice
    columns: slice


Rewrite: TypeAlias = "Callable[[WeightPiece, Tensor], Tensor]"
"""Maps a piece and its weights to new weights of the same shape `[rows, columns]`."""


def pieces(config: DecoderConfig, shard: int) -> Iterator[WeightPiece]:
    """Weights of a shard in a layer: a key-value head, its query heads, and a slice of the MLP.

    Deviation: STI slices by attention head; query heads that share a key-value head cannot be separated.
    """
    c, full = config, slice(None)
    query_rows, head_rows = c.groups * c.head_dim, c.head_dim
    keys = c.heads * c.head_dim
    heads = slice(shard * query_rows, (shard + 1) * query_rows)
    yield WeightPiece("qkv", heads, full)
    for start in (keys, keys + c.kv_heads * head_rows):
        yield WeightPiece("qkv", slice(start + shard * head_rows, start + (shard + 1) * head_rows), full)
    yield WeightPiece("out", full, heads)
    first, last = (c.intermediate * s // c.kv_heads for s in (shard, shard + 1))
    for start in (0, c.intermediate) if c.gated else (0,):
        yield WeightPiece("up", slice(start + first, start + last), full)
    yield WeightPiece("down", full, slice(first, last))


def map_shards(layer: LayerWeights, config: DecoderConfig, rewrites: Mapping[int, Rewrite]) -> LayerWeights:
    """A copy of a layer with the weights of some shards replaced.

    Raises:
        InputError: the layer's weights are not dense.
    """
    layer_copy = layer.map(_copy)
    for shard, rewrite in rewrites.items():
        for piece in pieces(config, shard):
            weight = getattr(layer_copy, piece.linear).weight[piece.rows, piece.columns]
            weight.copy_(rewrite(piece, weight))
    return layer_copy


def round_shards(layer: LayerWeights, config: DecoderConfig, widths: Sequence[int]) -> LayerWeights:
    """A copy of a layer with shards rounded to `widths` bits; `FULL` does not round."""

    def to(bits: int) -> Rewrite:
        return lambda _, weight: round_to_dictionary(weight, bits)

    return map_shards(layer, config, {s: to(bits) for s, bits in enumerate(widths) if bits != FULL})


def round_to_dictionary(weight: Tensor, bits: int) -> Tensor:
    """Quantize a weight `[rows, columns]` to a dictionary of 2^bits values, keeping outliers.

    As in GOBO, which STI uses: the values least likely under a Gaussian fitted to the weight stay unrounded;
    all others take the nearest dictionary value.
    Deviation: outliers are a fixed share, not those below a likelihood, so that a shard's size depends only
    on its shape; the dictionary minimizes squared error (Lloyd), GOBO's absolute error.
    """
    flat = weight.float().flatten()
    outliers = (flat - flat.mean()).abs().topk(round(OUTLIERS * len(flat))).indices
    inner = torch.ones_like(flat, dtype=torch.bool)
    inner[outliers] = False
    values = _dictionary(flat[inner].sort().values.double(), 2**bits).float()
    nearest = values[torch.bucketize(flat, (values[1:] + values[:-1]) / 2)]
    return torch.where(inner, nearest, flat).view(weight.shape).to(weight.dtype)


@lru_cache(maxsize=1)
def rounded_layers(
    folder: Path, dtype: str, config: DecoderConfig, bits: int, device: str
) -> Sequence[LayerWeights]:
    """All layers of a checkpoint, every shard rounded to `bits`.

    The last result is cached: it takes half a minute, and the cells of a sweep share it.
    """
    widths = [bits] * config.kv_heads
    dense_layers = weights.layers(folder, dtype, device=torch.device(device))
    return [packed_layer(round_shards(layer, config, widths)) for layer in dense_layers]


def require_dense(dtype: str) -> None:
    """Raise InputError for a dtype whose weights are already quantized."""
    if dtype not in DENSE:
        raise InputError(
            f"shards are rounded from dense weights, and dtype is {dtype!r}; choose {' or '.join(DENSE)}"
        )


def _copy(linear: Linear) -> PlainLinear:
    dense = as_plain(linear)
    return replace(dense, weight=dense.weight.clone())


def packed_layer(layer: LayerWeights) -> LayerWeights:
    """A layer of dense weights, reordered for speed."""
    return layer.map(lambda linear: fastest_linear(as_plain(linear)))


def _dictionary(ordered: Tensor, size: int) -> Tensor:
    """Dictionary values for sorted numbers by Lloyd's algorithm, ascending fp64 `[at most size]`.

    Initialized near the optimum for a Gaussian: with the density of a Gaussian wider by sqrt(3) (Panter and
    Dite). Values to which no number is assigned are dropped.
    """
    total = torch.cat((ordered.new_zeros(1), ordered.cumsum(0)))
    deviation = 3**0.5 * ordered.std(correction=0)
    shares = torch.arange(1, size, dtype=ordered.dtype, device=ordered.device) / size
    bounds = ordered.mean() + deviation * torch.special.ndtri(shares)
    for _ in range(STEPS):
        inner = torch.searchsorted(ordered, bounds)
        edges = torch.cat((inner.new_zeros(1), inner, inner.new_full((1,), len(ordered))))
        counts = edges.diff()
        values = (total[edges].diff() / counts)[counts > 0]
        bounds = (values[1:] + values[:-1]) / 2
    return values
