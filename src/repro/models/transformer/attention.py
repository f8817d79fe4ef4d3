"""Attention of rows over a cache, by explicit positions and mask.

Owns which slots a row sees and how scores become values. Knows nothing of weights or of what a row
stands for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repro.core.errors import InputError
from repro.core.late import late
from repro.models.transformer.cache import KVCache
from repro.models.transformer.config import DecoderConfig

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
else:
    torch = late("torch")
    F = late("torch.nn.functional")

# From so many rows on, torch's tiled attention beats two grouped products: early where it skips the masked
# half of a causal pass, late where it has to read a mask.
CAUSAL_ROWS = 32
TILED_ROWS = 256


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """What every layer of one kind needs to know about the rows of a pass: computed once, used in each layer.

    `rotation` is `[rows, 1, head_dim / 2]` complex. A `tiled` pass reads `visible`, bool `[rows, slots]`, or
    nothing where it is causal over an empty cache; the others add `bias`, 0 or -inf and
    `[1, groups * rows, slots]`, or nothing where a row sees every slot.
    """

    rotation: Tensor | None
    tiled: bool = False
    visible: Tensor | None = None
    bias: Tensor | None = None


def attention_mask(
    config: DecoderConfig,
    layer: int,
    rotation: Tensor | None,
    positions: Tensor,
    mask: Tensor | None,
    cache: KVCache,
) -> AttentionMask:
    """What rows at `positions` see in `layer`, whose cache holds every slot before them.

    Raises:
        InputError: the mask is not bool `[rows, cached + rows]`.
    """
    rows, cached = positions.shape[0], cache.length_of(layer)
    near = _near(config, layer, positions, cache)
    if mask is None and near is None:
        if rows == 1:
            return AttentionMask(rotation)
        if rows >= CAUSAL_ROWS and cached == 0 and config.attention_cap is None:
            return AttentionMask(rotation, tiled=True)
    seen = visible(config, layer, positions, mask, cache)
    if rows >= TILED_ROWS and config.attention_cap is None:
        return AttentionMask(rotation, tiled=True, visible=seen)
    return AttentionMask(rotation, bias=blindness(config, seen))


def visible(
    config: DecoderConfig, layer: int, positions: Tensor, mask: Tensor | None, cache: KVCache
) -> Tensor:
    """Which slots the rows of a pass see, bool `[rows, cached + rows]`; all else as of `attention_mask`."""
    rows, cached = positions.shape[0], cache.length_of(layer)
    if mask is None:
        mask = torch.ones(rows, cached + rows, dtype=torch.bool, device=positions.device).tril(cached)
    if mask.dtype != torch.bool or mask.shape != (rows, cached + rows):
        raise InputError(
            f"the mask must be bool [{rows}, {cached + rows}] for {rows} rows over {cached} cached slots, "
            f"got {mask.dtype} {list(mask.shape)}"
        )
    near = _near(config, layer, positions, cache)
    return mask if near is None else mask & near


def blindness(config: DecoderConfig, seen: Tensor) -> Tensor:
    """What scores get added so that rows see these slots alone: 0 or -inf, `[1, groups * rows, slots]`."""
    blind = torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, -torch.inf)
    return blind.repeat(config.groups, 1)[None]


def _near(config: DecoderConfig, layer: int, positions: Tensor, cache: KVCache) -> Tensor | None:
    """Which slots lie within the layer's window, bool `[rows, slots]`; None where all do."""
    if not config.is_sliding(layer) or config.window is None or int(positions.max()) < config.window:
        return None
    return cache.positions_of(layer, positions.shape[0]) > positions[:, None] - config.window


def attend(
    config: DecoderConfig, queries: Tensor, keys: Tensor, values: Tensor, attention_mask: AttentionMask
) -> Tensor:
    """Mix values by the softmax of scores.

    `queries` is `[rows, heads, head_dim]`, `keys` and `values` `[kv_heads, slots, head_dim]`; the result is
    `[rows, heads * head_dim]`.
    """
    rows = queries.shape[0]
    queries = queries.to(keys.dtype)
    if attention_mask.tiled:
        return _tiled(queries, keys, values, attention_mask.visible, config.query_scale)
    kv_heads, _, width = keys.shape
    # Query heads that share a key-value head become rows of one product, so keys are never repeated.
    grouped = (
        queries.view(kv_heads, -1, width)
        if rows == 1
        else queries.transpose(0, 1).reshape(kv_heads, -1, width)
    )
    mixed = torch.bmm(torch.softmax(scores(config, grouped, keys, attention_mask.bias), -1), values)
    if rows == 1:
        return mixed.view(1, -1)
    return mixed.view(-1, rows, width).transpose(0, 1).reshape(rows, -1)


def scores(config: DecoderConfig, queries: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """`[kv_heads, groups * rows, slots]`, scaled, capped and masked."""
    found = torch.bmm(queries, keys.transpose(1, 2)).mul_(config.query_scale)
    if config.attention_cap is not None:
        found.div_(config.attention_cap).tanh_().mul_(config.attention_cap)
    return found if bias is None else found.add_(bias)


def _tiled(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None, scale: float) -> Tensor:
    """Many rows: torch's attention, which never holds all scores at once."""
    mixed = F.scaled_dot_product_attention(
        queries.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=visible,
        is_causal=visible is None,
        scale=scale,
        enable_gqa=True,
    )
    return mixed[0].transpose(0, 1).reshape(queries.shape[0], -1)
