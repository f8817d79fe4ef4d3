"""Weights rounded linearly and symmetrically, each row of a matrix by a scale of its own; activations stay.

Owns that rounding and a checkpoint's decoder behind it. Must not know what else is made of the decoder: rows
and columns may be reordered or cut afterwards, since neither changes what a weight is.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from repro.core.errors import InputError
from repro.models.analysis.hooks import places, replaced
from repro.models.quantization.scale_folding import plain
from repro.models.transformer import weights
from repro.models.transformer.decoder import Decoder

WIDTHS = range(2, 9)
"""Bits of a code."""


def load(folder: Path | str, bits: int | None = None) -> Decoder:
    """A checkpoint's decoder, dense in fp32 and all resident, its layers' matrices rounded to so many bits.

    Args:
        folder: the checkpoint.
        bits: 2 to 8; None leaves the weights as they are.

    Raises:
        InputError: other bits.
    """
    whole = weights.load(folder, "float32", packed=False)
    return whole if bits is None else rounded(whole, bits)


def rounded(decoder: Decoder, bits: int) -> Decoder:
    """A decoder of the same form over rounded matrices; embeddings, output projection, norms and biases stay.

    Args:
        decoder: dense and whole, not reordered. It is not changed.
        bits: 2 to 8.

    Raises:
        InputError: other bits, or a linear that is not dense.
    """
    if bits not in WIDTHS:
        raise InputError(f"weights are rounded to {WIDTHS[0]} to {WIDTHS[-1]} bits, not to {bits!r}")
    linears = {place: plain(linear) for place, linear in places(decoder)}
    made = {place: replace(held, weight=nearest(held.weight, bits)) for place, held in linears.items()}
    return replaced(decoder, made)


def nearest(weight: Tensor, bits: int) -> Tensor:
    """A weight `[rows, columns]`, each value the nearest multiple of its row's step.

    The largest magnitude of a row is its largest code, 127 at 8 bits and 7 at 4; a row of zeros stays.
    """
    top = (1 << bits - 1) - 1
    step = (weight.abs().amax(1, keepdim=True) / top).clamp_min(1e-30)
    codes: Tensor = (weight / step).round()
    return codes * step
