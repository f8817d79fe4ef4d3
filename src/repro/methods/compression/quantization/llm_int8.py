"""LLM.int8(): 8-bit integers with a scale per row, and large inputs in float.

Owns the threshold. Must not know how the two products are carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from repro.core.errors import InputError
from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.models.analysis.hooks import places, replaced
from repro.models.quantization.scale_folding import plain
from repro.models.quantization.w8a8 import Int8Weight, RowwiseLinear, scale_per_output
from repro.models.transformer.decoder import Decoder


@register("compression", "llm_int8")
@dataclass(frozen=True)
class LlmInt8:
    """Rows of inputs and of weights each over their own maximum; outlier columns apart.

    Deviation: the float part is fp32 with the weight's 8-bit codes, where the release has fp16 with the same.

    Attributes:
        threshold: an input that reaches it anywhere in a pass is an outlier, for all rows of the pass.
    """

    calibrated: ClassVar[bool] = False

    threshold: float = 6.0

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        if self.threshold <= 0.0:
            raise InputError(f"llm_int8.threshold must be positive, got {self.threshold}")
        dense = {place: plain(linear) for place, linear in places(decoder)}
        made = {
            place: RowwiseLinear(Int8Weight.of(linear, scale_per_output(linear.weight)), self.threshold)
            for place, linear in dense.items()
        }
        return Compressed(replaced(decoder, made), {"bits_per_weight": 8})
