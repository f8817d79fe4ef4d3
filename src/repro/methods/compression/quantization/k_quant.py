"""llama.cpp's K-quants: the block format of each matrix.

Owns the mixes. Must not know how a format rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.models.analysis.hooks import LinearId, linears_of, matrices, with_linears
from repro.models.quantization.ggml_formats import FORMATS, LARGE_BLOCK, fitting, round_q8_0, round_q8_k
from repro.models.quantization.grouped import BlockLinear, bits_per_weight
from repro.models.transformer.config import DecoderConfig
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import PlainLinear, as_plain


@register("compression", "k_quant")
@dataclass(frozen=True)
class KQuant:
    """Weights in llama.cpp's block formats, activations dynamically quantized to 8 bits per block.

    Row lengths that are no multiple of 256 use another format as in llama.cpp (`ggml_formats.fitting`).
    Deviation: products are computed in fp32 on dequantized values instead of in int8 with a scale per block.
    The output projection and the embeddings stay fp32 (llama.cpp: Q6_K and Q4_K).

    Attributes:
        mix: quantization type of `llama-quantize`: `q4_k_m`, `q4_k_s`, `q6_k` or `q8_0`.
    """

    calibrated: ClassVar[bool] = False

    mix: Literal["q4_k_m", "q4_k_s", "q6_k", "q8_0"] = "q4_k_m"

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        config = decoder.config
        linears = {
            name: _quantize(config, name, as_plain(linear), self.mix) for name, linear in linears_of(decoder)
        }
        return Compressed(
            with_linears(decoder, linears), {"bits_per_weight": bits_per_weight(linears.values())}
        )


def more_bits(layer: int, layer_count: int) -> bool:
    """Whether Q4_K_M uses Q6_K in a layer: the first and last eighth, and every third layer between."""
    return layer < layer_count // 8 or layer >= 7 * layer_count // 8 or (layer - layer_count // 8) % 3 == 2


def _q4_k_m(matrix: str, layer: int, layer_count: int) -> str:
    return "q6_k" if matrix in ("v", "down") and more_bits(layer, layer_count) else "q4_k"


def _q4_k_s(matrix: str, layer: int, layer_count: int) -> str:
    needs_more_bits = (matrix == "v" and layer < 4) or (matrix == "down" and layer < layer_count // 8)
    return "q5_k" if needs_more_bits else "q4_k"


MIXES: Mapping[str, Callable[[str, int, int], str]] = {
    "q4_k_m": _q4_k_m,
    "q4_k_s": _q4_k_s,
    "q6_k": lambda matrix, layer, layers: "q6_k",
    "q8_0": lambda matrix, layer, layers: "q8_0",
}
"""Mix -> format of a matrix (`v`, `down` or another) of a layer, as in `llama_tensor_get_type`."""


def _quantize(config: DecoderConfig, linear_id: LinearId, linear: PlainLinear, mix: str) -> BlockLinear:
    """Quantize a fused linear, each original matrix (q, k, v; gate, up) in its own format."""
    outputs, inputs = matrices(config, linear_id.part), linear.weight.shape[1]
    names = ("q", "k", "v") if linear_id.part == "qkv" else (linear_id.part,) * len(outputs)
    formats = [FORMATS[fitting(MIXES[mix](name, linear_id.layer, config.layers), inputs)] for name in names]
    pieces = torch.split(linear.weight, list(outputs))
    weight = torch.cat([quantize(piece) for quantize, piece in zip(formats, pieces, strict=True)])
    bits = sum(quantize.bits * rows for quantize, rows in zip(formats, outputs, strict=True)) / sum(outputs)
    # All matrices of a fused linear have the same row length, so its activations are quantized once.
    rounding = round_q8_k if formats[0].block == LARGE_BLOCK else round_q8_0
    return BlockLinear(weight, bits, rounding, linear.bias)
