"""Moving scales between a norm and the linears that it feeds, so that inputs shrink where weights grow.

Owns which norms feed which linears and how a scale passes from one to the other. Must not know how scales are
chosen (SmoothQuant, AWQ) nor what is rounded afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from repro.core.errors import InputError
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.layer import LayerWeights
from repro.models.transformer.linear import Linear, PlainLinear
from repro.models.transformer.norm import LayerNorm, Norm


def feeds(config: DecoderConfig) -> Mapping[str, tuple[str, ...]]:
    """Norms of a layer whose rows go to linears and nowhere else, with these linears.

    A norm that ends a half (`block` "post") feeds the residual as well, so nothing can be moved through it.
    """
    if config.block == "post":
        return {}
    if config.block == "parallel":
        return {"before_attention": ("qkv", "up")}
    return {"before_attention": ("qkv",), "before_mlp": ("up",)}


def plain(linear: Linear) -> PlainLinear:
    """The linear itself; InputError if it is not dense, since only dense weights can be scaled."""
    if not isinstance(linear, PlainLinear):
        raise InputError(f"only dense linears can be compressed, got {type(linear).__name__}")
    return linear


def scaled_norm(norm: Norm, by: Tensor) -> Norm:
    """A norm whose rows come out times `by`, fp32 `[width]`."""
    if isinstance(norm, LayerNorm):
        return replace(norm, weight=norm.weight * by, bias=norm.bias * by)
    return replace(norm, weight=norm.weight * by)


def scaled_inputs(linear: Linear, by: Tensor) -> PlainLinear:
    """A linear that answers to `x` as the given one does to `x * by`, fp32 `[inputs]`."""
    dense = plain(linear)
    return replace(dense, weight=dense.weight * by)


def scaled_outputs(linear: Linear, by: Tensor) -> PlainLinear:
    """A linear whose outputs come out times `by`, fp32 `[outputs]`."""
    dense = plain(linear)
    bias = None if dense.bias is None else dense.bias * by
    return replace(dense, weight=dense.weight * by[:, None], bias=bias)


def folded(layer: LayerWeights, norm: str, parts: tuple[str, ...], by: Tensor) -> LayerWeights:
    """A layer that computes the same while the inputs of some linears are smaller.

    Args:
        layer: dense linears.
        norm: the norm that feeds them, a key of `feeds`.
        parts: all linears that it feeds, the value of that key.
        by: what their inputs are divided by and their weights' columns multiplied with, fp32 `[inputs]`.
    """
    source = getattr(layer, norm)
    assert source is not None, f"the layer has no norm {norm}"
    grown = {part: scaled_inputs(getattr(layer, part), by) for part in parts}
    return replace(layer, **{norm: scaled_norm(source, 1.0 / by)}, **grown)  # type: ignore[arg-type]
