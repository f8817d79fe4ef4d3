"""Per-group integer quantization, for which an NPU must split each matrix product.

Owns the choice of group size and bits. Must not know how a device computes products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from annotated_types import Interval
from torch import Tensor

from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.models.analysis.hooks import linears_of, with_linears
from repro.models.quantization.block_linear import BlockLinear, bits_per_weight
from repro.models.quantization.grouped import SCALE_BITS, Group, groups_of, symmetric
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import PlainLinear, as_plain


@register("compression", "per_group")
@dataclass(frozen=True)
class PerGroup:
    """Symmetric integer weights and activations, one scale per group of inputs (mllm-NPU Fig. 3, right).

    Activation scales are dynamic per row; the paper does not specify this.
    Deviation: products are computed in fp32 on dequantized values instead of in integers.

    Attributes:
        bits: bits of weights and of activations; the NPU multiplies 8 bits.
        group: inputs that share a scale; the paper does not give its group size.
    """

    calibrated: ClassVar[bool] = False

    bits: Annotated[int, Interval(ge=2, le=16)] = 8
    group: Group = 128

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        linears = {place: self._quantize(as_plain(linear)) for place, linear in linears_of(decoder)}
        return Compressed(
            with_linears(decoder, linears), {"bits_per_weight": bits_per_weight(linears.values())}
        )

    def _quantize(self, linear: PlainLinear) -> BlockLinear:
        inputs = linear.weight.shape[1]
        rounding = partial(symmetric, bits=self.bits, group=self.group)
        bits = self.bits + SCALE_BITS * groups_of(inputs, self.group) / inputs
        return BlockLinear(rounding(linear.weight), bits, rounding, linear.bias)
