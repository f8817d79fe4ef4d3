"""W8A8 linears: int8 weights and int8 inputs with exact integer products.

Owns the integer product, the rounding of inputs and the handling of outliers beyond the scale. Must not know
how scales were found or which linears get which.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor

from repro.models.analysis.hooks import LinearId, linears_of, matrices, with_linears
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import Linear, PlainLinear, TensorFields, as_plain

LOW, HIGH = -128, 127
"""Range of input codes. Weight codes lie in [-127, 127]."""

_TINY = torch.finfo(torch.float32).tiny

# Private torch ops; None in builds without oneDNN, which use the unfused integer product.
_fused_product: Any = getattr(torch.ops.onednn, "qlinear_pointwise", None)
_reorder: Any = getattr(torch.ops.onednn, "qlinear_prepack", None)


@dataclass(frozen=True, slots=True)
class Int8Weight(TensorFields):
    """An 8-bit weight `[outputs, inputs]`, one fp32 scale per output, and an fp32 bias.

    `blocked` is the same weight in oneDNN's layout; it is derived and never stored.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor | None = None
    blocked: Tensor | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, dense: PlainLinear, scale: Tensor) -> Int8Weight:
        """Quantize a dense weight with the given scales, fp32 `[outputs]`."""
        codes = (dense.weight.float() / scale[:, None]).round_().clamp_(-HIGH, HIGH).to(torch.int8)
        # Column-major, so that gathering the columns of a few inputs is fast.
        weight = codes.t().contiguous().t()
        bias = None if dense.bias is None else dense.bias.float()
        return cls(weight, scale, bias, _reorder(codes, None) if fuses() else None)

    def tensors(self) -> dict[str, Tensor]:
        """See `Linear`."""
        stored = {"weight": self.weight, "scale": self.scale, "bias": self.bias}
        return {name: tensor for name, tensor in stored.items() if tensor is not None}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Int8Weight:
        """See `Linear`; `blocked` is dropped, since it belongs to the old tensors."""
        return Int8Weight(**tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of weight and scales read by one product."""
        return self.weight.nbytes + self.scale.nbytes

    def times(self, codes: Tensor, step: float) -> Tensor:
        """Multiply inputs `step * codes`, int8 `[rows, inputs]`, and add the bias; fp32.

        The integer sum is exact; it is converted to fp32 once and then scaled.
        """
        if self.blocked is not None:
            return _product(codes, step, self.blocked, self.scale, self.bias)
        y = _integers(codes, self.weight.t()).float().mul_(self.scale * step)
        return y if self.bias is None else y.add_(self.bias)

    def columns(self, channels: Tensor) -> Tensor:
        """Weight codes of the input `channels`, int64 `[n]`, as fp32 `[n, outputs]`."""
        return self.weight.t()[channels].float()


@dataclass(frozen=True, slots=True)
class W8A8Linear:
    """Static per-tensor input quantization with a fixed `step`; codes are clamped to int8.

    With `shadow`, the clamped-off part is multiplied in float and added (mllm-NPU Eq. 1). With
    `output_steps`, fp32 `[outputs]`, the integer product is rounded to 8 bits before that part is added.
    Deviation: Eq. 1 as printed is not an identity; the part beyond the scale is
    `round(x/s) - clamp(round(x/s))`, as in the text and the release, and the clamp is to int8's range, not to
    [-127, 128].
    """

    weight: Int8Weight
    step: float
    shadow: bool = False
    output_steps: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        x = x.float()
        y = self.weight.times(_codes(x, self.step), self.step)
        if self.output_steps is not None:
            y = y.div_(self.output_steps).round_().clamp_(LOW, HIGH).mul_(self.output_steps)
        if self.shadow and (outliers := self.channels(x)).shape[0]:
            steps = x[:, outliers].mul_(1.0 / self.step).round_()
            beyond = steps - steps.clamp(LOW, HIGH)
            # Sparse: few rows of such a channel are outliers.
            product = torch.sparse.mm(beyond.to_sparse(), self.weight.columns(outliers))
            y.addcmul_(product, self.weight.scale, value=self.step)
        return y

    def channels(self, x: Tensor) -> Tensor:
        """Input channels of fp32 `x` with a value beyond the scale, int64 `[n]`."""
        inverse = 1.0 / self.step
        # Two reductions: torch.aminmax over rows is ten times slower.
        above, below = x.amax(0).mul_(inverse).round_() > HIGH, x.amin(0).mul_(inverse).round_() < LOW
        return (above | below).nonzero()[:, 0]

    def tensors(self) -> dict[str, Tensor]:
        """See `Linear`."""
        return self.weight.tensors()

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """See `Linear`."""
        return replace(self, weight=self.weight.with_tensors(tensors))

    @property
    def weight_bytes(self) -> int:
        """See `Linear`; outlier columns, which are read again, are not counted."""
        return self.weight.nbytes


@dataclass(frozen=True, slots=True)
class RowwiseLinear:
    """Dynamic per-token input quantization with float outliers (LLM.int8()).

    An input channel in which any row of the pass reaches `threshold` is excluded from all codes and
    multiplied in fp32 with its dequantized weight column.
    """

    weight: Int8Weight
    threshold: float

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        x = x.float()
        outliers = (x.abs().amax(0) >= self.threshold).nonzero()[:, 0]
        near = x.index_fill(1, outliers, 0.0) if outliers.shape[0] else x
        step = (near.abs().amax(1, keepdim=True) / HIGH).clamp_min_(_TINY)
        codes = (near / step).round_().to(torch.int8)
        y = replace(self.weight, bias=None).times(codes, 1.0).mul_(step)
        if outliers.shape[0]:
            y.addcmul_(x[:, outliers] @ self.weight.columns(outliers), self.weight.scale)
        return y if self.weight.bias is None else y.add_(self.weight.bias)

    def tensors(self) -> dict[str, Tensor]:
        """See `Linear`."""
        return self.weight.tensors()

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """See `Linear`."""
        return replace(self, weight=self.weight.with_tensors(tensors))

    @property
    def weight_bytes(self) -> int:
        """See `Linear`."""
        return self.weight.nbytes


def scale_per_matrix(weight: Tensor, outputs: Sequence[int]) -> Tensor:
    """Absmax scales, one per joined matrix, repeated over its outputs: fp32 `[sum(outputs)]`."""
    parts = torch.split(weight.float(), list(outputs))
    steps = [(part.abs().amax() / HIGH).expand(len(part)) for part in parts]
    return torch.cat(steps).clamp_min_(_TINY)


def scale_per_output(weight: Tensor) -> Tensor:
    """Absmax scales, one per output row of the weight: fp32 `[outputs]`."""
    return (weight.float().abs().amax(1) / HIGH).clamp_min_(_TINY)


def quantize_static(
    decoder: Decoder,
    steps: Mapping[LinearId, float],
    shadowed: Container[LinearId] = (),
    rows: bool = False,
    output_steps: Mapping[LinearId, Tensor] | None = None,
) -> Decoder:
    """A decoder with a static input step per linear, and one weight scale per checkpoint matrix.

    Args:
        decoder: all layers resident.
        steps: the step of each linear's inputs.
        shadowed: linears whose outliers are multiplied in float.
        rows: one weight scale per row (output) instead.
        output_steps: steps of the outputs, fp32 `[outputs]`; None leaves outputs in float.

    Raises:
        InputError: a linear is not dense.
    """
    linears: dict[LinearId, Linear] = {}
    for name, linear in linears_of(decoder):
        dense = as_plain(linear)
        outputs = matrices(decoder.config, name.part)
        scale = scale_per_output(dense.weight) if rows else scale_per_matrix(dense.weight, outputs)
        weight, step = Int8Weight.of(dense, scale), max(steps[name], _TINY)
        steps_of_outputs = output_steps[name].clamp_min(_TINY) if output_steps else None
        linears[name] = W8A8Linear(weight, step, name in shadowed, steps_of_outputs)
    return with_linears(decoder, linears)


@cache
def fuses() -> bool:
    """Whether oneDNN's fused int8 product is available and exact.

    Without VNNI, 8-bit products may saturate at 16 bits; this tests the largest ones.
    """
    if _fused_product is None or _reorder is None:
        return False
    weight = torch.full((16, 64), HIGH, dtype=torch.int8)
    codes = torch.full((16, 64), HIGH, dtype=torch.int8)
    product = _product(codes, 1.0, _reorder(weight, None), torch.ones(16), None)
    return bool((product == 64 * HIGH * HIGH).all())


@cache
def _int_mm_saturates() -> bool:
    """Whether `torch._int_mm` saturates at 16 bits."""
    extremes = torch.full((16, 64), HIGH, dtype=torch.int8)
    return bool((torch._int_mm(extremes, extremes.t()) != 64 * HIGH * HIGH).any())


def _integers(codes: Tensor, weight: Tensor) -> Tensor:
    """The exact int32 product; if int8 products saturate, the weight is split in two parts that cannot."""
    if not _int_mm_saturates():
        return torch._int_mm(codes, weight)
    return torch._int_mm(codes, weight >> 1).mul_(2).add_(torch._int_mm(codes, weight & 1))


def _product(codes: Tensor, step: float, blocked: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """oneDNN's fused u8 x s8 product, with zero point 128, since it has no fast fused s8 x s8 product."""
    zero = torch.zeros(1, dtype=torch.int64)
    shifted = codes.view(torch.uint8) ^ 128
    y: Tensor = _fused_product(
        shifted, step, 128, blocked, scale, zero, bias, 1.0, 0, torch.float32, "none", [], ""
    )
    return y


def _codes(x: Tensor, step: float) -> Tensor:
    """Quantize fp32 inputs with `step`, clamped to int8."""
    return x.mul(1.0 / step).round_().clamp_(LOW, HIGH).to(torch.int8)
