"""8-bit and 4-bit weight quantization, and the quantized linears.

Owns the rounding rules. Must not know about layers, files or the choice of precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repro.core.errors import InputError
from repro.core.late import late
from repro.models.transformer.linear import Int4Linear, Int8Linear, PlainLinear, packed

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
else:
    torch = late("torch")
    F = late("torch.nn.functional")

# The group size of GGUF's Q4_0 and Q4_1, and the smallest that torch's 4-bit kernel supports.
GROUP = 32
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

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.codes.shape[1] // self.scale.shape[1]

    def dequantized(self) -> Tensor:
        """The dequantized weight, fp32 `[outputs, inputs]`."""
        grouped = self.codes.float().view(*self.scale.shape, -1) - 8.0
        return (grouped * self.scale.float()[..., None] + self.zero.float()[..., None]).view(self.codes.shape)


def q4_0(weight: Tensor, group: int = GROUP) -> Codes:
    """Symmetric 4-bit codes as in GGUF's Q4_0: the value of largest magnitude in a group becomes code 0.

    Deviation: the scale is bf16, as torch's kernel requires; GGUF stores fp16.
    """
    blocks = _blocks(weight, group)
    extreme = blocks.gather(2, blocks.abs().argmax(2, keepdim=True)).squeeze(2)
    scale = (extreme / -8.0).to(torch.bfloat16)
    return _coded(blocks, scale, torch.zeros_like(scale))


def q4_1(weight: Tensor, group: int = GROUP) -> Codes:
    """Asymmetric 4-bit codes as in GGUF's Q4_1: the smallest value of a group is code 0, the largest 15.

    Deviation: scale and zero are bf16, as torch's kernel requires; GGUF stores fp16.
    """
    blocks = _blocks(weight, group)
    low, high = blocks.aminmax(dim=2)
    scale = ((high - low) / 15.0).to(torch.bfloat16)
    return _coded(blocks, scale, (low + 8.0 * scale.float()).to(torch.bfloat16))


def int8_codes(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric 8-bit codes, int8 `[outputs, inputs]`, and one bf16 scale per output, `[outputs]`."""
    weight = weight.float()
    scale = (weight.abs().amax(1) / 127.0).clamp_min(torch.finfo(torch.float32).tiny).to(torch.bfloat16)
    return (weight / scale.float()[:, None]).round_().clamp_(-127, 127).to(torch.int8), scale


def int8_linear(weight: Tensor, bias: Tensor | None = None, twin: bool = False) -> Int8Linear:
    """An 8-bit linear; `twin` adds a 16-bit copy of the rounded weight for passes of many rows."""
    codes, scale = int8_codes(weight)
    bias = None if bias is None else bias.to(torch.bfloat16)
    wide = None
    if twin:
        wide = packed(PlainLinear((codes.float() * scale.float()[:, None]).to(torch.bfloat16), bias))
    return Int8Linear(codes, scale, bias, wide)


def int4_linear(
    weight: Tensor, bias: Tensor | None = None, twin: bool = False, rounding: Callable[[Tensor], Codes] = q4_1
) -> Int4Linear:
    """A 4-bit linear; `twin` as in `int8_linear`, `rounding` is `q4_0` or `q4_1`.

    Raises:
        InputError: the number of inputs is not a multiple of the group size.
    """
    rounded = rounding(weight)
    bias = None if bias is None else bias.to(torch.bfloat16)
    outputs = weight.shape[0]
    missing = -outputs % OUTPUT_BLOCK
    codes = F.pad(rounded.codes, (0, 0, 0, missing)).to(torch.int32)
    scales = torch.stack((rounded.scale.t(), rounded.zero.t()), -1)
    wide = packed(PlainLinear(rounded.dequantized().to(torch.bfloat16), bias)) if twin else None
    return Int4Linear(
        torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1),
        F.pad(scales, (0, 0, 0, missing)).contiguous(),
        outputs,
        rounded.group,
        bias,
        wide,
    )


def _blocks(weight: Tensor, group: int) -> Tensor:
    if weight.shape[1] % group:
        raise InputError(
            f"4-bit weights need inputs in whole groups of {group}, got {weight.shape[1]} inputs"
        )
    return weight.float().view(weight.shape[0], -1, group)


def _coded(blocks: Tensor, scale: Tensor, zero: Tensor) -> Codes:
    """Codes for the rounded (bf16) scale and zero, so that their rounding error is not added again."""
    step = scale.float()[..., None]
    codes = (
        ((blocks - zero.float()[..., None]) / torch.where(step == 0, 1.0, step) + 8.0).round_().clamp_(0, 15)
    )
    return Codes(codes.to(torch.uint8).view(blocks.shape[0], -1), scale, zero)
