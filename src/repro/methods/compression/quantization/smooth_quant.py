"""SmoothQuant: scales outliers out of the inputs of linears into their weights, then quantizes to int8.

Owns the smoothing scales. Must not know how they are folded into a norm or how integers are multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from repro.core.bounds import Share
from repro.core.errors import InputError
from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.models.analysis.activations import largest_by_channel
from repro.models.analysis.hooks import LinearId
from repro.models.quantization.scale_folding import feeds, fold_scales
from repro.models.quantization.w8a8 import HIGH, quantize_static
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import as_plain

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
        largest = largest_by_channel(decoder, corpus)
        scales = smoothing(decoder, largest, self.alpha)
        # Smoothed inputs are the inputs over the scales, so their maxima need no second calibration pass.
        inputs = {place: maxima / scales.get(place, 1.0) for place, maxima in largest.items()}
        steps = {place: float(maxima.max()) / HIGH for place, maxima in inputs.items()}
        return Compressed(quantize_static(smooth(decoder, scales), steps), {"bits_per_weight": 8})


def smoothing(decoder: Decoder, largest: Mapping[LinearId, Tensor], alpha: float) -> dict[LinearId, Tensor]:
    """Divisors of the inputs of linears after a norm: `max|X_j|^alpha / max|W_j|^(1 - alpha)`.

    Linears after the same norm share their scales, from the joint maximum of weights (SmoothQuant Eq. 4).

    Args:
        decoder: dense linears.
        largest: largest magnitude of every input by linear, fp32 `[inputs]`.
        alpha: migration strength, 0 to 1.
    """
    scales: dict[LinearId, Tensor] = {}
    for i, layer in enumerate(decoder.layers):
        for parts in feeds(decoder.config).values():
            weights = [as_plain(getattr(layer, part)).weight.abs().amax(0) for part in parts]
            weight = torch.stack(weights).amax(0).clamp_min(_LEAST)
            scale = largest[LinearId(i, parts[0])].clamp_min(_LEAST) ** alpha / weight ** (1.0 - alpha)
            scales |= dict.fromkeys((LinearId(i, part) for part in parts), scale.clamp_min(_LEAST))
    return scales


def smooth(decoder: Decoder, scales: Mapping[LinearId, Tensor]) -> Decoder:
    """An equivalent decoder with smoothed inputs; `scales` come from `smoothing`."""
    layers = decoder.resident_layers()
    for norm, parts in feeds(decoder.config).items():
        for i, layer in enumerate(layers):
            layers[i] = fold_scales(layer, norm, parts, scales[LinearId(i, parts[0])])
    return decoder.with_layers(layers)
