"""Symmetric round-to-nearest of weights, one scale per matrix row; activations are not rounded.

Owns that rounding and loading a rounded decoder. Must not know how the decoder is used: rows and columns may
be reordered or cut afterwards without changing the rounded values.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from repro.core.errors import InputError
from repro.models.analysis.hooks import linears_of, with_linears
from repro.models.transformer import weights
from repro.models.transformer.decoder import Decoder
from repro.models.transformer.linear import as_plain

BIT_WIDTHS = range(2, 9)
"""Supported bits per weight."""


def load(folder: Path | str, bits: int | None = None) -> Decoder:
    """Load a checkpoint's decoder, dense, fp32 and fully resident, with layer matrices rounded to `bits`.

    Args:
        folder: the checkpoint.
        bits: 2 to 8; None does not round.

    Raises:
        InputError: unsupported bits.
    """
    decoder = weights.load(folder, "float32", is_packed=False)
    return decoder if bits is None else round_decoder(decoder, bits)


def round_decoder(decoder: Decoder, bits: int) -> Decoder:
    """Round a decoder's layer matrices; embeddings, output projection, norms and biases are unchanged.

    Args:
        decoder: dense, fully resident, not reordered. It is not changed.
        bits: 2 to 8.

    Raises:
        InputError: unsupported bits, or a linear that is not dense.
    """
    if bits not in BIT_WIDTHS:
        raise InputError(f"weights are rounded to {BIT_WIDTHS[0]} to {BIT_WIDTHS[-1]} bits, not to {bits!r}")
    linears = {name: as_plain(linear) for name, linear in linears_of(decoder)}
    rounded_linears = {
        name: replace(linear, weight=nearest(linear.weight, bits)) for name, linear in linears.items()
    }
    return with_linears(decoder, rounded_linears)


def nearest(weight: Tensor, bits: int) -> Tensor:
    """Round a weight `[rows, columns]` to the nearest multiple of each row's step.

    The largest magnitude of a row gets the largest code, 127 at 8 bits and 7 at 4; a row of zeros stays zero.
    """
    highest_code = (1 << bits - 1) - 1
    step = (weight.abs().amax(1, keepdim=True) / highest_code).clamp_min(1e-30)
    codes: Tensor = (weight / step).round()
    return codes * step
