"""Vertical slices of a decoder's layers, each at a width of its own (STI, Guo et al., ASPLOS 2023).

Owns which weights a shard has and how they are rounded. Knows nothing of why a shard has its width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from repro.core.errors import InputError
from repro.core.late import late
from repro.models.costs.shard_plan import FULL, OUTLIERS
from repro.models.transformer import weights
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder, EmbeddingAndHead
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import Linear, PlainLinear, packed

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")

DENSE = ("float32", "bfloat16")
"""Dtypes whose weights can be sliced."""

STEPS = 50
"""Of the search for a dictionary's values; more of them lower no error by a hundredth."""


class WeightPiece(NamedTuple):
    """A part of one linear's weight: rows and columns."""

    linear: str
    rows: slice
    columns: slice


Rewrite: TypeAlias = "Callable[[WeightPiece, Tensor], Tensor]"
"""What a shard's piece becomes, `[rows, columns]` like the piece that it is given."""


def pieces(config: DecoderConfig, shard: int) -> Iterator[WeightPiece]:
    """A shard's weights in a layer: a key-value head, the query heads that share it, their slice of the MLP.

    Deviation: STI slices by attention heads; heads that share keys and values cannot be told apart by them.
    """
    c, every = config, slice(None)
    wide, narrow = c.groups * c.head_dim, c.head_dim
    keys = c.heads * c.head_dim
    heads = slice(shard * wide, (shard + 1) * wide)
    yield WeightPiece("qkv", heads, every)
    for start in (keys, keys + c.kv_heads * narrow):
        yield WeightPiece("qkv", slice(start + shard * narrow, start + (shard + 1) * narrow), every)
    yield WeightPiece("out", every, heads)
    first, last = (c.intermediate * s // c.kv_heads for s in (shard, shard + 1))
    for start in (0, c.intermediate) if c.gated else (0,):
        yield WeightPiece("up", slice(start + first, start + last), every)
    yield WeightPiece("down", every, slice(first, last))


def rewritten(layer: LayerWeights, config: DecoderConfig, rewrites: Mapping[int, Rewrite]) -> LayerWeights:
    """A copy of a layer in which some shards' pieces are others.

    Raises:
        InputError: the layer's weights are not dense.
    """
    qkv, out, up, down = map(_copy, layer.linears)
    copied = replace(layer, qkv=qkv, out=out, up=up, down=down)
    for shard, rewrite in rewrites.items():
        for piece in pieces(config, shard):
            part = getattr(copied, piece.linear).weight[piece.rows, piece.columns]
            part.copy_(rewrite(piece, part))
    return copied


def narrowed(layer: LayerWeights, config: DecoderConfig, widths: Sequence[int]) -> LayerWeights:
    """A layer whose shards are rounded to so many bits each; `FULL` leaves one as it is."""

    def to(bits: int) -> Rewrite:
        return lambda _, weight: rounded(weight, bits)

    return rewritten(layer, config, {s: to(bits) for s, bits in enumerate(widths) if bits != FULL})


def rounded(weight: Tensor, bits: int) -> Tensor:
    """A weight `[rows, columns]` whose values come from a dictionary of 2^bits, but for outliers.

    As in GOBO, which STI uses: the values least likely under the weight's own Gaussian stay what they are,
    all others become the nearest of the dictionary's.
    Deviation: outliers are a fixed share and not those below a likelihood, so that a shard's size follows
    from its shape; the dictionary minimizes the squared error (Lloyd), GOBO's the absolute one.
    """
    flat = weight.float().flatten()
    outliers = (flat - flat.mean()).abs().topk(round(OUTLIERS * len(flat))).indices
    inner = torch.ones_like(flat, dtype=torch.bool)
    inner[outliers] = False
    values = _dictionary(flat[inner].sort().values.double(), 2**bits).float()
    nearest = values[torch.bucketize(flat, (values[1:] + values[:-1]) / 2)]
    return torch.where(inner, nearest, flat).view(weight.shape).to(weight.dtype)


def sharded(
    folder: Path, dtype: str, ends: EmbeddingAndHead, widths: Sequence[Sequence[int]], config: DecoderConfig
) -> Decoder:
    """A checkpoint's decoder with its shards rounded, `widths[layer][shard]` in bits.

    Args:
        folder: the checkpoint.
        dtype: one of `DENSE`.
        ends: of the unrounded decoder: embeddings and output projection have no shards.
        widths: a row for each real layer.
        config: the checkpoint's structure.
    """
    device = ends.embedding.device
    layers = zip(weights.layers(folder, dtype, device=device), widths, strict=True)
    return Decoder(config, [_packed(narrowed(layer, config, row)) for layer, row in layers], ends)


@lru_cache(maxsize=1)
def rounded_layers(
    folder: Path, dtype: str, config: DecoderConfig, bits: int, device: str
) -> Sequence[LayerWeights]:
    """All layers of a checkpoint, every shard rounded to so many bits. Kept: it takes half a minute, and the
    cells of a sweep share it."""
    widths = [bits] * config.kv_heads
    read = weights.layers(folder, dtype, device=torch.device(device))
    return [_packed(narrowed(layer, config, widths)) for layer in read]


def require_dense(dtype: str) -> None:
    """InputError for a dtype whose weights are rounded already."""
    if dtype not in DENSE:
        raise InputError(
            f"shards are rounded from dense weights, and dtype is {dtype!r}; choose {' or '.join(DENSE)}"
        )


def _copy(linear: Linear) -> PlainLinear:
    plain = _plain(linear)
    return replace(plain, weight=plain.weight.clone())


def _plain(linear: Linear) -> PlainLinear:
    if not isinstance(linear, PlainLinear):
        raise InputError(f"only dense weights have shards, not {type(linear).__name__}")
    return linear


def _packed(layer: LayerWeights) -> LayerWeights:
    qkv, out, up, down = (packed(_plain(linear)) for linear in layer.linears)
    return replace(layer, qkv=qkv, out=out, up=up, down=down)


def _dictionary(ordered: Tensor, size: int) -> Tensor:
    """The values, ascending fp64 `[at most size]`, that sorted numbers are best replaced by (Lloyd's rule).

    Begins with what is nearly best for a Gaussian: as dense as one that is wider by the root of 3 (Panter and
    Dite's rule). A value that stands for no number is dropped.
    """
    total = torch.cat((ordered.new_zeros(1), ordered.cumsum(0)))
    spread = 3**0.5 * ordered.std(correction=0)
    shares = torch.arange(1, size, dtype=ordered.dtype, device=ordered.device) / size
    bounds = ordered.mean() + spread * torch.special.ndtri(shares)
    for _ in range(STEPS):
        inner = torch.searchsorted(ordered, bounds)
        edges = torch.cat((inner.new_zeros(1), inner, inner.new_full((1,), len(ordered))))
        counts = edges.diff()
        values = (total[edges].diff() / counts)[counts > 0]
        bounds = (values[1:] + values[:-1]) / 2
    return values
