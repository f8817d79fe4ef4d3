"""Static W8A8: one scale per weight matrix and one per linear's inputs, from calibration.

Owns the scale of the inputs. Must not know how the integers are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.models.analysis.activations import largest_by_channel
from repro.models.quantization.w8a8 import HIGH, quantize_static
from repro.models.transformer.decoder import Decoder


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
