"""Folds per-channel scales between a norm and the linears it feeds: inputs shrink, weights grow.

Owns which norms feed which linears, and the folding. Must not know how scales are chosen (SmoothQuant, AWQ)
or what is rounded afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import Linear, PlainLinear, as_plain
from repro.models.transformer.norm import LayerNorm, Norm


def feeds(config: DecoderConfig) -> Mapping[str, tuple[str, ...]]:
    """Norms of a layer whose outputs go only to linears, with those linears.

    A post-norm (`block` "post") also feeds the residual, so no scale can be folded into it.
    """
    if config.block == "post":
        return {}
    if config.block == "parallel":
        return {"before_attention": ("qkv", "up")}
    return {"before_attention": ("qkv",), "before_mlp": ("up",)}


def scaled_norm(norm: Norm, by: Tensor) -> Norm:
    """A norm whose outputs are multiplied by `by`, fp32 `[width]`."""
    if isinstance(norm, LayerNorm):
        return replace(norm, weight=norm.weight * by, bias=norm.bias * by)
    return replace(norm, weight=norm.weight * by)


def scaled_inputs(linear: Linear, by: Tensor) -> PlainLinear:
    """A linear that maps `x` to `linear(x * by)`; `by` is fp32 `[inputs]`."""
    dense = as_plain(linear)
    return replace(dense, weight=dense.weight * by)


def scaled_outputs(linear: Linear, by: Tensor) -> PlainLinear:
    """A linear whose outputs are multiplied by `by`, fp32 `[outputs]`."""
    dense = as_plain(linear)
    bias = None if dense.bias is None else dense.bias * by
    return replace(dense, weight=dense.weight * by[:, None], bias=bias)


def fold_scales(layer: LayerWeights, norm: str, parts: tuple[str, ...], by: Tensor) -> LayerWeights:
    """An equivalent layer with scales moved from the inputs of some linears to their weights.

    Args:
        layer: dense linears.
        norm: the norm that feeds them, a key of `feeds`.
        parts: all linears it feeds, the value of that key.
        by: inputs are divided and weight columns multiplied by this, fp32 `[inputs]`.
    """
    feeding_norm = getattr(layer, norm)
    assert feeding_norm is not None, f"the layer has no norm {norm}"
    scaled_linears = {part: scaled_inputs(getattr(layer, part), by) for part in parts}
    return replace(layer, **{norm: scaled_norm(feeding_norm, 1.0 / by)}, **scaled_linears)  # type: ignore[arg-type]
