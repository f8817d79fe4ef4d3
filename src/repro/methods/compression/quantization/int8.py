"""Weights and inputs in int8: with static scales, smoothed before (SmoothQuant), or by rows (LLM.int8()).

Owns the scales and the threshold of outliers. Must not know how scales are folded into a norm or how integers
are multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Interval
from torch import Tensor

from repro.core.bounds import Share
from repro.core.errors import InputError
from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.models.analysis.activations import largest_by_channel
from repro.models.analysis.hooks import LinearId, linears_of, with_linears
from repro.models.quantization.scale_folding import feeds, fold_scales
from repro.models.quantization.w8a8 import HIGH, Int8Weight, RowwiseLinear, quantize_static, scale_per_output
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import as_plain


@register("compression", "w8a8")
@dataclass(frozen=True)
class W8A8:
    """Symmetric max-abs scales: per matrix for weights, per tensor and static for inputs."""

    calibrated: ClassVar[bool] = True

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        maxima = largest_by_channel(decoder, corpus)
        steps = {place: float(largest.max()) / HIGH for place, largest in maxima.items()}
        return Compressed(quantize_static(decoder, steps), {"bits_per_weight": 8})


_LEAST = 1e-5
"""Lower bound of maxima and scales, as in the release."""


@register("compression", "smooth_quant")
@dataclass(frozen=True)
class SmoothQuant:
    """Smoothing and per-tensor static W8A8 (O3); linears without a norm before them are not smoothed.

    Attributes:
        alpha: migration strength, 0 to 1; 0.5 is the paper's default.
    """

    calibrated: ClassVar[bool] = True

    alpha: Share = 0.5

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        if not feeds(decoder.config):
            raise InputError(
                f"smooth_quant needs norms that feed linears alone, and a decoder whose block is "
                f"{decoder.config.block!r} has none; choose w8a8, llm_int8 or shadow"
            )
        magnitudes = largest_by_channel(decoder, corpus)
        scales = smoothing(decoder, magnitudes, self.alpha)
        # Smoothed inputs are the inputs over the scales, so their maxima need no second calibration pass.
        inputs = {name: maxima / scales.get(name, 1.0) for name, maxima in magnitudes.items()}
        steps = {name: float(maxima.max()) / HIGH for name, maxima in inputs.items()}
        return Compressed(quantize_static(smooth(decoder, scales), steps), {"bits_per_weight": 8})


def smoothing(decoder: Decoder, maxima: Mapping[LinearId, Tensor], alpha: float) -> dict[LinearId, Tensor]:
    """Divisors of the inputs of linears after a norm: `max|X_j|^alpha / max|W_j|^(1 - alpha)`.

    Linears after the same norm share their scales, from the joint maximum of weights (SmoothQuant Eq. 4).

    Args:
        decoder: dense linears.
        maxima: largest magnitude of every input by linear, fp32 `[inputs]`.
        alpha: migration strength, 0 to 1.
    """
    scales: dict[LinearId, Tensor] = {}
    for i, layer in enumerate(decoder.layers):
        for matrix_names in feeds(decoder.config).values():
            weights = [as_plain(getattr(layer, part)).weight.abs().amax(0) for part in matrix_names]
            weight = torch.stack(weights).amax(0).clamp_min(_LEAST)
            scale = maxima[LinearId(i, matrix_names[0])].clamp_min(_LEAST) ** alpha / weight ** (1.0 - alpha)
            scales |= dict.fromkeys((LinearId(i, part) for part in matrix_names), scale.clamp_min(_LEAST))
    return scales


def smooth(decoder: Decoder, scales: Mapping[LinearId, Tensor]) -> Decoder:
    """An equivalent decoder with smoothed inputs; `scales` come from `smoothing`."""
    layers = decoder.resident_layers()
    for norm, matrix_names in feeds(decoder.config).items():
        for i, layer in enumerate(layers):
            layers[i] = fold_scales(layer, norm, matrix_names, scales[LinearId(i, matrix_names[0])])
    return decoder.with_layers(layers)


@register("compression", "llm_int8")
@dataclass(frozen=True)
class LlmInt8:
    """Max-abs scales per row of inputs and of weights; outlier columns are multiplied in fp32.

    Deviation: the outlier product uses fp32 and the int8 weights; the release uses fp16 and the same weights.

    Attributes:
        threshold: a column with an input of at least this magnitude in a pass is an outlier for all its rows.
    """

    calibrated: ClassVar[bool] = False

    threshold: Annotated[float, Interval(gt=0, le=1e6)] = 6.0

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        dense = {place: as_plain(linear) for place, linear in linears_of(decoder)}
        linears = {
            place: RowwiseLinear(Int8Weight.of(linear, scale_per_output(linear.weight)), self.threshold)
            for place, linear in dense.items()
        }
        return Compressed(with_linears(decoder, linears), {"bits_per_weight": 8})
