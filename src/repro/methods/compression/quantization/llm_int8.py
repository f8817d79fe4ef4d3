"""LLM.int8(): vector-wise int8 quantization, with outlier columns in floating point.

Owns the threshold. Must not know how the two products are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Interval
from torch import Tensor

from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.models.analysis.hooks import linears_of, with_linears
from repro.models.quantization.w8a8 import Int8Weight, RowwiseLinear, scale_per_output
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import as_plain


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
