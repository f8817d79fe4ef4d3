"""fp16: the uncompressed reference of accuracy tables, without calibration.

Owns the rounding of a decoder's matrices to fp16. Must not know any other compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.models.transformer.decoder import Decoder, EmbeddingAndHead
from repro.models.transformer.linear import Linear

AnyLinear = TypeVar("AnyLinear", bound=Linear)


@register("compression", "fp16")
@dataclass(frozen=True)
class Fp16:
    """Linears, embeddings and output projection rounded to fp16; norms stay as they are.

    Deviation: sums and activations stay fp32, as CPUs multiply fp16 slowly.
    """

    calibrated: ClassVar[bool] = False

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        layers = [None if layer is None else layer.map(_round_linear) for layer in decoder.layers]
        fp16_decoder = decoder.with_layers(layers, _round_ends(decoder.ends))
        return Compressed(fp16_decoder, {"bits_per_weight": 16.0})


def _round_ends(ends: EmbeddingAndHead) -> EmbeddingAndHead:
    return replace(
        ends,
        embedding=_fp16(ends.embedding),
        head=_round_linear(ends.head),
        positions=None if ends.positions is None else _fp16(ends.positions),
        project_in=None if ends.project_in is None else _round_linear(ends.project_in),
        project_out=None if ends.project_out is None else _round_linear(ends.project_out),
    )


def _round_linear(linear: AnyLinear) -> AnyLinear:
    return linear.with_tensors({name: _fp16(tensor) for name, tensor in linear.tensors().items()})


def _fp16(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float16).to(tensor.dtype)
