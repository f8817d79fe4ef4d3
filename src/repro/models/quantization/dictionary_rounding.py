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

DENSE_DTYPES = ("float32", "bfloat16")
"""Dtypes whose weights can be sharded."""

FULL_WIDTH = 32
"""Width that marks an unrounded shard, whatever its stored precision."""

OUTLIER_SHARE = 0.001
"""Share of a shard's weights that stay unrounded, about as in GOBO, whose rounding STI uses."""

LLOYD_STEPS = 50
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
    full_span = slice(None)
    query_rows, head_rows = config.groups * config.head_dim, config.head_dim
    keys = config.heads * config.head_dim
    heads = slice(shard * query_rows, (shard + 1) * query_rows)
    yield WeightPiece("qkv", heads, full_span)
    for start in (keys, keys + config.kv_heads * head_rows):
        yield WeightPiece("qkv", slice(start + shard * head_rows, start + (shard + 1) * head_rows), full_span)
    yield WeightPiece("out", full_span, heads)
    begin, end = (config.intermediate * s // config.kv_heads for s in (shard, shard + 1))
    for start in (0, config.intermediate) if config.gated else (0,):
        yield WeightPiece("up", slice(start + begin, start + end), full_span)
    yield WeightPiece("down", full_span, slice(begin, end))


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
    """A copy of a layer with shards rounded to `widths` bits; `FULL_WIDTH` does not round."""

    def to(bits: int) -> Rewrite:
        return lambda _, weight: round_to_dictionary(weight, bits)

    return map_shards(
        layer, config, {shard: to(bits) for shard, bits in enumerate(widths) if bits != FULL_WIDTH}
    )


def round_to_dictionary(weight: Tensor, bits: int) -> Tensor:
    """Quantize a weight `[rows, columns]` to a dictionary of 2^bits values, keeping outliers.

    As in GOBO, which STI uses: the values least likely under a Gaussian fitted to the weight stay unrounded;
    all others take the nearest dictionary value.
    Deviation: outliers are a fixed share, not those below a likelihood, so that a shard's size depends only
    on its shape; the dictionary minimizes squared error (Lloyd), GOBO's absolute error.
    """
    numbers = weight.float().flatten()
    outliers = (numbers - numbers.mean()).abs().topk(round(OUTLIER_SHARE * len(numbers))).indices
    is_normal = torch.ones_like(numbers, dtype=torch.bool)
    is_normal[outliers] = False
    values = _dictionary(numbers[is_normal].sort().values.double(), 2**bits).float()
    nearest_values = values[torch.bucketize(numbers, (values[1:] + values[:-1]) / 2)]
    return torch.where(is_normal, nearest_values, numbers).view(weight.shape).to(weight.dtype)


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
    if dtype not in DENSE_DTYPES:
        raise InputError(
            f"shards are rounded from dense weights, and dtype is {dtype!r}; choose "
            f"{' or '.join(DENSE_DTYPES)}"
        )


def _copy(linear: Linear) -> PlainLinear:
    dense_linear = as_plain(linear)
    return replace(dense_linear, weight=dense_linear.weight.clone())


def packed_layer(layer: LayerWeights) -> LayerWeights:
    """A layer of dense weights, reordered for speed."""
    return layer.map(lambda linear: fastest_linear(as_plain(linear)))


def _dictionary(numbers: Tensor, dictionary_size: int) -> Tensor:
    """Dictionary values for sorted numbers by Lloyd's algorithm, ascending fp64 `[at most dictionary_size]`.

    Initialized near the optimum for a Gaussian: with the density of a Gaussian wider by sqrt(3) (Panter and
    Dite). Values to which no number is assigned are dropped.
    """
    cumulative_sum = torch.cat((numbers.new_zeros(1), numbers.cumsum(0)))
    deviation = 3**0.5 * numbers.std(correction=0)
    shares = torch.arange(1, dictionary_size, dtype=numbers.dtype, device=numbers.device) / dictionary_size
    bounds = numbers.mean() + deviation * torch.special.ndtri(shares)
    for _ in range(LLOYD_STEPS):
        cuts = torch.searchsorted(numbers, bounds)
        edges = torch.cat((cuts.new_zeros(1), cuts, cuts.new_full((1,), len(numbers))))
        counts = edges.diff()
        values = (cumulative_sum[edges].diff() / counts)[counts > 0]
        bounds = (values[1:] + values[:-1]) / 2
    return values
