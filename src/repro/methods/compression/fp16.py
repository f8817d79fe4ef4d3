"""The uncompressed model of accuracy tables: every weight in 16 bits, nothing calibrated.

Owns the rounding of all of a decoder's weights. Must not know any other compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor

from repro.core.registry import register
from repro.methods.compression.base import Compressed
from repro.models.decoder import Decoder, Ends
from repro.models.layer import LayerWeights
from repro.models.linear import Linear
from repro.models.norm import Norm


@register("compression", "fp16")
@dataclass(frozen=True)
class Fp16:
    """Every weight rounded to fp16: linears, norms, embeddings and output projection.

    Deviation: sums and activations stay fp32, as CPUs multiply fp16 slowly.
    """

    calibrated: ClassVar[bool] = False

    def compress(self, decoder: Decoder, corpus: Sequence[Tensor]) -> Compressed:
        """See `Compression`."""
        layers = [None if layer is None else _rounded(layer) for layer in decoder.layers]
        return Compressed(
            Decoder(decoder.config, layers, _rounded(decoder.ends)), figures={"bits_per_weight": 16.0}
        )


def _rounded[Parts: (LayerWeights, Ends)](parts: Parts) -> Parts:
    """Linears, norms and tensors of a layer or of the decoder's ends, rounded."""
    held = {f.name: getattr(parts, f.name) for f in fields(parts)}
    return replace(parts, **{name: _rounded_part(part) for name, part in held.items() if part is not None})


def _rounded_part(part: Linear | Norm | Tensor) -> Linear | Norm | Tensor:
    if isinstance(part, Tensor):
        return _fp16(part)
    return part.with_tensors({name: _fp16(tensor) for name, tensor in part.tensors().items()})


def _fp16(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float16).to(tensor.dtype)
