"""4-bit weights with an 8-bit output projection: rounding, and the quantized linears.

Owns the rounding rules. Must not know about layers, files or the choice of precision.
"""

from __future__ import annotations

from dataclasses import dataclass

from repro.core.errors import InputError
from repro.libraries import F, Tensor, torch
from repro.models.transformer.linear import Int4Linear, Int8Linear, PlainLinear, fastest_linear

# The group size of GGUF's Q4_1, and the smallest that torch's 4-bit kernel supports.
GROUP_SIZE = 32
# torch's 4-bit kernel computes outputs in blocks; 64 is the widest it uses.
OUTPUT_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Codes:
    """A quantized 4-bit weight before packing: `(code - 8) * scale + zero`.

    `codes` is uint8 `[outputs, inputs]` in 0..15; `scale` and `zero` are bf16 `[outputs, inputs / group]`.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor

    def dequantize(self) -> Tensor:
        """The dequantized weight, fp32 `[outputs, inputs]`."""
        groups = self.codes.float().view(*self.scale.shape, -1) - 8.0
        return (groups * self.scale.float()[..., None] + self.zero.float()[..., None]).view(self.codes.shape)


def q4_1(weight: Tensor) -> Codes:
    """Asymmetric 4-bit codes as in GGUF's Q4_1: the smallest value of a group is code 0, the largest 15.

    Codes are for the rounded scale and zero, so that the rounding error of these is not added again.
    Deviation: scale and zero are bf16, as torch's kernel requires; GGUF stores fp16.

    Raises:
        InputError: the number of inputs is not a multiple of the group size.
    """
    if weight.shape[1] % GROUP_SIZE:
        raise InputError(
            f"4-bit weights need inputs in whole groups of {GROUP_SIZE}, got {weight.shape[1]} inputs"
        )
    blocks = weight.float().view(weight.shape[0], -1, GROUP_SIZE)
    lows, highs = blocks.aminmax(dim=2)
    scale = ((highs - lows) / 15.0).to(torch.bfloat16)
    zero = (lows + 8.0 * scale.float()).to(torch.bfloat16)
    step = scale.float()[..., None]
    levels = (blocks - zero.float()[..., None]) / torch.where(step == 0, 1.0, step) + 8.0
    codes = levels.round_().clamp_(0, 15).to(torch.uint8)
    return Codes(codes.view(weight.shape), scale, zero)


def int8_codes(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric 8-bit codes, int8 `[outputs, inputs]`, and one bf16 scale per output, `[outputs]`."""
    weight = weight.float()
    scale = (weight.abs().amax(1) / 127.0).clamp_min(torch.finfo(torch.float32).tiny).to(torch.bfloat16)
    return (weight / scale.float()[:, None]).round_().clamp_(-127, 127).to(torch.int8), scale


def int8_linear(weight: Tensor, bias: Tensor | None = None, twin: bool = False) -> Int8Linear:
    """An 8-bit linear; `twin` adds a 16-bit copy of the rounded weight for passes of many rows."""
    codes, scale = int8_codes(weight)
    bias = None if bias is None else bias.to(torch.bfloat16)
    copy = None
    if twin:
        copy = fastest_linear(PlainLinear((codes.float() * scale.float()[:, None]).to(torch.bfloat16), bias))
    return Int8Linear(codes, scale, bias, copy)


def int4_linear(weight: Tensor, bias: Tensor | None = None, twin: bool = False) -> Int4Linear:
    """A 4-bit linear, rounded by `q4_1`; `twin` as in `int8_linear`.

    Raises:
        InputError: the number of inputs is not a multiple of the group size.
    """
    packed_weight = q4_1(weight)
    bias = None if bias is None else bias.to(torch.bfloat16)
    outputs = weight.shape[0]
    padding = -outputs % OUTPUT_BLOCK
    codes = F.pad(packed_weight.codes, (0, 0, 0, padding)).to(torch.int32)
    scales = torch.stack((packed_weight.scale.t(), packed_weight.zero.t()), -1)
    copy = fastest_linear(PlainLinear(packed_weight.dequantize().to(torch.bfloat16), bias)) if twin else None
    return Int4Linear(
        torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1),
        F.pad(scales, (0, 0, 0, padding)).contiguous(),
        outputs,
        GROUP_SIZE,
        bias,
        copy,
    )
