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


def scaled_norm(norm: Norm, factors: Tensor) -> Norm:
    """A norm whose outputs are multiplied by `factors`, fp32 `[width]`."""
    if isinstance(norm, LayerNorm):
        return replace(norm, weight=norm.weight * factors, bias=norm.bias * factors)
    return replace(norm, weight=norm.weight * factors)


def scaled_inputs(linear: Linear, factors: Tensor) -> PlainLinear:
    """A linear that maps `x` to `linear(x * factors)`; `factors` is fp32 `[inputs]`."""
    dense_linear = as_plain(linear)
    return replace(dense_linear, weight=dense_linear.weight * factors)


def scaled_outputs(linear: Linear, factors: Tensor) -> PlainLinear:
    """A linear whose outputs are multiplied by `factors`, fp32 `[outputs]`."""
    dense_linear = as_plain(linear)
    bias = None if dense_linear.bias is None else dense_linear.bias * factors
    return replace(dense_linear, weight=dense_linear.weight * factors[:, None], bias=bias)


def fold_scales(
    layer: LayerWeights, norm: str, matrix_names: tuple[str, ...], divisors: Tensor
) -> LayerWeights:
    """An equivalent layer with scales moved from the inputs of some linears to their weights.

    Args:
        layer: dense linears.
        norm: the norm that feeds them, a key of `feeds`.
        matrix_names: all linears it feeds, the value of that key.
        divisors: inputs are divided and weight columns multiplied by this, fp32 `[inputs]`.
    """
    feeding_norm = getattr(layer, norm)
    assert feeding_norm is not None, f"the layer has no norm {norm}"
    scaled_linears = {part: scaled_inputs(getattr(layer, part), divisors) for part in matrix_names}
    return replace(layer, **{norm: scaled_norm(feeding_norm, 1.0 / divisors)}, **scaled_linears)  # type: ignore[arg-type]
