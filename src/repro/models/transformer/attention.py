"""Attention of a pass's rows over a KV cache, with explicit positions and mask; a row is one token position.

Owns which slots a row sees, and the attention kernels. Must not know about weights or what a row means.
"""

from __future__ import annotations

from dataclasses import dataclass

from repro.core.errors import InputError
from repro.libraries import F, Tensor, torch
from repro.models.transformer.cache import KVCache
from repro.models.transformer.config import DecoderConfig

# Numbers of rows from which torch's tiled attention is faster than two batched matmuls: small for a causal
# pass, whose masked half it skips, and large if it has to read a mask.
CAUSAL_ROWS = 32
TILED_ROWS = 256


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """RoPE factors and mask of a pass, computed once and shared by all layers of one kind.

    `rotation` is complex `[rows, 1, head_dim / 2]`. A `tiled` pass uses `visible`, bool `[rows, slots]`, or
    None if it is causal over an empty cache. Other passes add `bias`, 0 or -inf, `[1, groups * rows, slots]`,
    or None if every slot is visible.
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
    """The mask of rows at `positions` in `layer`, before their keys are appended to the cache.

    Raises:
        InputError: the mask is not bool `[rows, cached + rows]`.
    """
    row_count, cached_slots = positions.shape[0], cache.length_of(layer)
    in_window = _near(config, layer, positions, cache)
    if mask is None and in_window is None:
        if row_count == 1:
            return AttentionMask(rotation)
        if row_count >= CAUSAL_ROWS and cached_slots == 0 and config.attention_cap is None:
            return AttentionMask(rotation, tiled=True)
    slots = visible(config, layer, positions, mask, cache)
    if row_count >= TILED_ROWS and config.attention_cap is None:
        return AttentionMask(rotation, tiled=True, visible=slots)
    return AttentionMask(rotation, bias=blindness(config, slots))


def visible(
    config: DecoderConfig, layer: int, positions: Tensor, mask: Tensor | None, cache: KVCache
) -> Tensor:
    """Which slots each row sees, bool `[rows, cached + rows]`; otherwise as `attention_mask`."""
    row_count, cached_slots = positions.shape[0], cache.length_of(layer)
    slots = cache.slots_seen(layer, row_count)
    if mask is None:
        mask = torch.ones(row_count, slots, dtype=torch.bool, device=positions.device).tril(cached_slots)
    if mask.dtype != torch.bool or mask.shape != (row_count, slots):
        raise InputError(
            f"the mask must be bool [{row_count}, {slots}] for {row_count} rows over {cached_slots} cached "
            f"slots, got {mask.dtype} {list(mask.shape)}"
        )
    in_window = _near(config, layer, positions, cache)
    return mask if in_window is None else mask & in_window


def blindness(config: DecoderConfig, slots: Tensor) -> Tensor:
    """The additive mask for the visible slots: 0 or -inf, `[1, groups * rows, slots]`."""
    bias = torch.zeros(slots.shape, device=slots.device).masked_fill_(~slots, -torch.inf)
    return bias.repeat(config.groups, 1)[None]


def _near(config: DecoderConfig, layer: int, positions: Tensor, cache: KVCache) -> Tensor | None:
    """Which slots are in the layer's sliding window, bool `[rows, slots]`; None if all are."""
    if not config.is_sliding(layer) or config.window is None or cache.farthest(positions) < config.window:
        return None
    return cache.positions_of(layer, positions.shape[0]) > positions[:, None] - config.window


def attend(
    config: DecoderConfig, queries: Tensor, keys: Tensor, values: Tensor, attention_mask: AttentionMask
) -> Tensor:
    """Scaled dot-product attention with grouped query heads.

    `queries` is `[rows, heads, head_dim]`, `keys` and `values` `[kv_heads, slots, head_dim]`; the result is
    `[rows, heads * head_dim]`.
    """
    row_count = queries.shape[0]
    queries = queries.to(keys.dtype)
    if attention_mask.tiled:
        return _sdpa(queries, keys, values, attention_mask.visible, config.query_scale)
    kv_heads, _, width = keys.shape
    # Query heads that share a key-value head are stacked as rows of one matmul, so keys are not repeated.
    grouped_queries = (
        queries.view(kv_heads, -1, width)
        if row_count == 1
        else queries.transpose(0, 1).reshape(kv_heads, -1, width)
    )
    outputs = torch.bmm(torch.softmax(scores(config, grouped_queries, keys, attention_mask.bias), -1), values)
    if row_count == 1:
        return outputs.view(1, -1)
    return outputs.view(-1, row_count, width).transpose(0, 1).reshape(row_count, -1)


def scores(config: DecoderConfig, queries: Tensor, keys: Tensor, bias: Tensor | None) -> Tensor:
    """Attention scores `[kv_heads, groups * rows, slots]`: scaled, soft-capped and masked."""
    products = torch.bmm(queries, keys.transpose(1, 2)).mul_(config.query_scale)
    if config.attention_cap is not None:
        products.div_(config.attention_cap).tanh_().mul_(config.attention_cap)
    return products if bias is None else products.add_(bias)


def _sdpa(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None, scale: float) -> Tensor:
    """Attention through torch's fused kernel, which does not materialize all scores."""
    outputs = F.scaled_dot_product_attention(
        queries.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=visible,
        is_causal=visible is None,
        scale=scale,
        enable_gqa=True,
    )
    return outputs[0].transpose(0, 1).reshape(queries.shape[0], -1)
