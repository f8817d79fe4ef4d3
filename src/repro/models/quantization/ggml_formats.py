"""llama.cpp's block formats: weights of 4 to 8 bits with scales shared by short blocks of a row.

Owns the rounding of each format. The `gguf` package rounds to the legacy ones; it only reads K-quants, whose
formulas are ggml's reference quantizers (`quantize_row_*_ref`). Must not know which tensor of a model gets
which format, nor the file layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from torch import Tensor

from repro.core.errors import InputError

SMALL_BLOCK = 32
"""Values per block of the legacy formats, and per sub-block of Q4_K and Q5_K."""
LARGE_BLOCK = 256
"""Values per super-block of a K-quant."""
ZERO_LIMIT = 1e-15
"""ggml treats a sub-block below this magnitude as zeros."""
CHUNK_WEIGHTS = 1 << 17
"""Values rounded at a time, so that a core's cache holds them during the search's repeated passes."""


@dataclass(frozen=True, slots=True)
class Coded:
    """Blocks of a K-quant as stored: a value is `codes * (scale * scales) + offset * offsets`.

    `codes` is int8 `[blocks, parts, values]`, signed for Q6_K. `scale` and `offset` are fp16 `[blocks, 1]`;
    `scales` and `offsets` are integers in fp32 `[blocks, parts]`.
    """

    codes: Tensor
    scale: Tensor
    scales: Tensor
    offset: Tensor
    offsets: Tensor

    def dequantize(self) -> Tensor:
        """The dequantized values, fp32 `[blocks, parts * values]`."""
        step = (self.scale.float() * self.scales)[..., None]
        offset = (self.offset.float() * self.offsets)[..., None]
        return (self.codes * step + offset).flatten(1)


@dataclass(frozen=True, slots=True)
class Format:
    """A block format.

    Attributes:
        kind: the format as the `gguf` package knows it.
        encode: quantizes blocks, fp32 `[blocks, block]`; None if the `gguf` package does.
        fallback: format that llama.cpp uses for rows that are not a multiple of `block`, if any.
    """

    kind: GGMLQuantizationType
    encode: Callable[[Tensor], Coded] | None = None
    fallback: str | None = None

    @property
    def block(self) -> int:
        """Values per fp16 scale."""
        return int(GGML_QUANT_SIZES[self.kind][0])

    @property
    def bits(self) -> float:
        """Stored bits per weight, scales included."""
        return 8 * float(GGML_QUANT_SIZES[self.kind][1]) / self.block

    def __call__(self, weight: Tensor) -> Tensor:
        """Quantize and dequantize a weight, fp32 `[outputs, inputs]`; inputs are a multiple of `block`."""
        if self.encode is None:
            quantized_bytes = quants.quantize(weight.float().cpu().numpy(), self.kind)
            return torch.from_numpy(quants.dequantize(quantized_bytes, self.kind)).to(weight.device)
        blocks = weight.float().reshape(-1, self.block)
        return torch.cat(
            [self.encode(chunk).dequantize() for chunk in torch.split(blocks, CHUNK_WEIGHTS // self.block)]
        ).view(weight.shape)


def fitting(name: str, input_count: int) -> str:
    """The format that llama.cpp uses for `name` when rows have `input_count` values.

    Its quantizer (`llama_tensor_get_type`) replaces Q4_K by Q5_0, Q5_K by Q5_1 and Q6_K by Q8_0.

    Raises:
        InputError: unknown format, or rows that neither it nor its fallback divides.
    """
    if name not in FORMATS:
        raise InputError(f"there is no block format {name!r}. Choices: {', '.join(FORMATS)}")
    candidate: str | None = name
    while candidate is not None and input_count % FORMATS[candidate].block:
        candidate = FORMATS[candidate].fallback
    if candidate is None:
        raise InputError(f"{name} needs rows in whole blocks of {SMALL_BLOCK}, got {input_count} inputs")
    return candidate


def _with_minima(blocks: Tensor, bits: int, start: float, trial_count: int) -> Coded:
    """Q4_K and Q5_K: 8 parts of 32, each with a 6-bit scale and a 6-bit minimum."""
    small_blocks = blocks.view(-1, LARGE_BLOCK // SMALL_BLOCK, SMALL_BLOCK)
    max_code = 2**bits - 1
    steps, lows = _search_affine(
        small_blocks, max_code, [0.1 * k + start + max_code for k in range(trial_count)]
    )
    scale, scales = _six_bits(steps)
    offset, offsets = _six_bits(-lows)
    step = (scale.float() * scales)[..., None]
    minimum = (offset.float() * offsets)[..., None]
    codes = ((small_blocks + minimum) / torch.where(step == 0, 1.0, step)).round_().clamp_(0, max_code)
    return Coded(codes.mul_(step != 0).to(torch.int8), scale, scales, -offset, offsets)


def _six_bits(values: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize non-negative `[blocks, parts]` to an fp16 scale `[blocks, 1]` and integers up to 63."""
    largest_values = values.amax(1, keepdim=True).clamp_min(0.0)
    inverse = torch.where(largest_values > 0, 63.0 / largest_values, 0.0)
    return (largest_values / 63.0).half(), (values * inverse).round_().clamp_(0, 63)


def _search_affine(small_blocks: Tensor, max_code: int, divisions: list[float]) -> tuple[Tensor, Tensor]:
    """Scale and minimum of each part, `[blocks, small_blocks]`, with the least weighted squared error.

    Each trial divides the range into another number of steps and refits scale and minimum to the codes; an
    improved minimum starts the range of later trials. A value's weight is the part's root mean square plus
    its magnitude.
    """
    lows, highs = small_blocks.amin(-1).clamp_max(0.0), small_blocks.amax(-1)
    is_flat = highs == lows
    weight = small_blocks.square().mean(-1, keepdim=True).sqrt() + small_blocks.abs()
    wx = weight * small_blocks
    sum_w, sum_x = weight.sum(-1), wx.sum(-1)

    def codes_of(division: float) -> Tensor:
        inverse = division / torch.where(is_flat, 1.0, highs - lows)
        return (small_blocks - lows[..., None]).mul_(inverse[..., None]).round_().clamp_(0, max_code)

    def error(codes: Tensor, step: Tensor, bottoms: Tensor) -> Tensor:
        differences = (codes * step[..., None]).add_(bottoms[..., None]).sub_(small_blocks)
        return differences.square_().mul_(weight).sum(-1)

    best_step = (highs - lows) / max_code
    least_errors = error(codes_of(float(max_code)), best_step, lows)
    for division in divisions:
        codes = codes_of(division)
        wl = weight * codes
        sum_l, sum_ll, sum_xl = wl.sum(-1), (wl * codes).sum(-1), (wx * codes).sum(-1)
        determinant = sum_w * sum_ll - sum_l * sum_l
        is_solvable = determinant > 0
        divisor = torch.where(is_solvable, determinant, 1.0)
        bottoms = (sum_ll * sum_x - sum_l * sum_xl) / divisor
        free_step = (sum_w * sum_xl - sum_x * sum_l) / divisor
        step = torch.where(bottoms > 0, sum_xl / sum_ll, free_step)
        bottoms = bottoms.clamp_max(0.0)
        errors = error(codes, step, bottoms)
        is_better = is_solvable & (errors < least_errors)
        least_errors = torch.where(is_better, errors, least_errors)
        best_step, lows = torch.where(is_better, step, best_step), torch.where(is_better, bottoms, lows)
    return best_step.masked_fill(is_flat, 0.0), lows


def _q6_k(blocks: Tensor) -> Coded:
    """Q6_K: 16 parts of 16, each with an 8-bit scale, the largest of which becomes -128."""
    small_blocks = blocks.view(-1, 16, 16)
    steps = _search_symmetric(small_blocks, 32)
    largest_steps = steps.gather(1, steps.abs().argmax(1, keepdim=True))
    is_empty = largest_steps.abs() < ZERO_LIMIT
    inverse = torch.where(is_empty, 0.0, -128.0 / torch.where(is_empty, 1.0, largest_steps))
    scale = _inverse(inverse).half()
    scales = (steps * inverse).round_().clamp_max_(127)
    step = (scale.float() * scales)[..., None]
    codes = (small_blocks / torch.where(step == 0, 1.0, step)).round_().clamp_(-32, 31)
    no_offset = torch.zeros_like(scale)
    return Coded(codes.mul_(step != 0).to(torch.int8), scale, scales, no_offset, torch.zeros_like(scales))


def _search_symmetric(small_blocks: Tensor, max_code: int) -> Tensor:
    """Scale of each part, `[blocks, parts]`, with the least squared error, weighted by squared values."""
    magnitudes = small_blocks.abs()
    extremes = small_blocks.gather(-1, magnitudes.argmax(-1, keepdim=True)).squeeze(-1)
    is_zero = extremes.abs() < ZERO_LIMIT
    extremes = torch.where(is_zero, 1.0, extremes)
    weight = small_blocks.square()
    wx = weight * small_blocks

    def weighted_sums(division: float) -> tuple[Tensor, Tensor]:
        codes = (small_blocks * (-division / extremes)[..., None]).round_().clamp_(-max_code, max_code - 1)
        return (wx * codes).sum(-1), (weight * codes).mul_(codes).sum(-1)

    sum_xl, sum_ll = weighted_sums(float(max_code))
    best_step = torch.where(sum_ll > 0, sum_xl / sum_ll, 0.0)
    best_gain = best_step * sum_xl
    for change in [k for k in range(-9, 10) if k]:
        sum_xl, sum_ll = weighted_sums(max_code + 0.1 * change)
        is_better = (sum_ll > 0) & (sum_xl * sum_xl > best_gain * sum_ll)
        best_step = torch.where(is_better, sum_xl / sum_ll, best_step)
        best_gain = torch.where(is_better, best_step * sum_xl, best_gain)
    return best_step.masked_fill(is_zero, 0.0)


def round_q8_0(rows: Tensor) -> Tensor:
    """Round activations as llama.cpp does for the legacy formats: Q8_0 in blocks of 32."""
    return FORMATS["q8_0"](rows)


def round_q8_k(rows: Tensor) -> Tensor:
    """Round activations as llama.cpp does for K-quants: 8 bits, an fp32 scale per block of 256."""
    blocks = rows.float().view(rows.shape[0], -1, LARGE_BLOCK)
    extremes = blocks.gather(2, blocks.abs().argmax(2, keepdim=True))
    inverse = torch.where(extremes == 0, 0.0, -127.0 / extremes)
    return ((blocks * inverse).round_().clamp_max_(127) * _inverse(inverse)).view(rows.shape)


def _inverse(x: Tensor) -> Tensor:
    """1/x, or 0 where x is 0."""
    return torch.where(x == 0, 0.0, 1.0 / x)


FORMATS: Mapping[str, Format] = {
    "q4_0": Format(GGMLQuantizationType.Q4_0),
    "q4_1": Format(GGMLQuantizationType.Q4_1),
    "q5_0": Format(GGMLQuantizationType.Q5_0),
    "q5_1": Format(GGMLQuantizationType.Q5_1),
    "q8_0": Format(GGMLQuantizationType.Q8_0),
    "q4_k": Format(GGMLQuantizationType.Q4_K, lambda blocks: _with_minima(blocks, 4, -1.0, 21), "q5_0"),
    "q5_k": Format(GGMLQuantizationType.Q5_K, lambda blocks: _with_minima(blocks, 5, -0.5, 16), "q5_1"),
    "q6_k": Format(GGMLQuantizationType.Q6_K, _q6_k, "q8_0"),
}
"""Formats by their `llama-quantize` name in lower case."""
