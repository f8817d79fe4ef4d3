"""llama.cpp's block formats: what the `gguf` package does not quantize, it reads to the last bit."""

import gguf
import numpy as np
import pytest
import torch

from repro.core.errors import InputError
from repro.models.quantization.ggml_formats import FORMATS, Coded, fitting, round_q8_0, round_q8_k

K_QUANTS = ["q4_k", "q5_k", "q6_k"]


def weight(outputs: int = 24, inputs: int = 512) -> torch.Tensor:
    """Random rows of many sizes; some blocks zero, constant, positive, negative, or with one outlier."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(outputs, inputs, generator=generator)
    rows *= torch.logspace(-4, 1, outputs)[:, None]
    rows[0] = 0
    rows[1, :256] = 0.3
    rows[2, :256] = -0.3
    rows[3] = rows[3].abs()
    rows[4] = -rows[4].abs()
    rows[5, 7] = 3.0
    rows[6, 16:32] = 0
    return rows


def encoded(name: str, rows: torch.Tensor) -> Coded:
    encode = FORMATS[name].encode
    assert encode is not None
    return encode(rows.view(-1, 256))


def packed(name: str, coded: Coded) -> np.ndarray:
    """Blocks in the layout of a GGUF file, uint8 `[blocks, bytes]`."""
    scale = coded.scale.numpy().view(np.uint8)
    if name == "q6_k":
        halves = (coded.codes.numpy().astype(np.int16) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
        low, high = halves & 15, halves >> 4
        nibbles = np.concatenate((low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4), axis=2)
        rest = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
        scales = coded.scales.to(torch.int8).numpy().view(np.uint8)
        return np.hstack((nibbles.reshape(-1, 128), rest.reshape(-1, 64), scales, scale))
    below = (-coded.offset).numpy().view(np.uint8)
    scales, minima = coded.scales.numpy().astype(np.uint8), coded.offsets.numpy().astype(np.uint8)
    six_bits = np.hstack(
        (
            scales[:, :4] | scales[:, 4:] >> 4 << 6,
            minima[:, :4] | minima[:, 4:] >> 4 << 6,
            scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4,
        )
    )
    codes = coded.codes.numpy().view(np.uint8)
    low = codes & 15
    nibbles = (low[:, 0::2] | low[:, 1::2] << 4).reshape(-1, 128)
    if name == "q4_k":
        return np.hstack((scale, below, six_bits, nibbles))
    fifth = np.bitwise_or.reduce([(codes[:, j] >> 4) << j for j in range(8)])
    return np.hstack((scale, below, six_bits, fifth, nibbles))


@pytest.mark.parametrize("name", K_QUANTS)
def test_a_k_quant_that_is_stored_reads_back_as_the_same_values(name: str) -> None:
    coded = encoded(name, weight())
    read = gguf.quants.dequantize(packed(name, coded), FORMATS[name].kind)
    assert np.array_equal(coded.dequantize().numpy(), read)
    assert np.array_equal(FORMATS[name](weight()).numpy().reshape(-1, 256), read)


@pytest.mark.parametrize(("name", "bits"), [("q4_k", 4), ("q5_k", 5), ("q6_k", 6)])
def test_the_search_beats_dividing_the_range_evenly(name: str, bits: int) -> None:
    rows = weight()[8:]
    missed = (FORMATS[name](rows) - rows).square().sum(1)
    part = 16 if name == "q6_k" else 32
    parts = rows.view(len(rows), -1, part)
    low, high = parts.amin(-1, keepdim=True), parts.amax(-1, keepdim=True)
    if name == "q6_k":
        high = torch.maximum(high, -low)
        low = -high
    step = (high - low) / (2**bits - 1)
    even = (((parts - low) / step).round() * step + low - parts).square().sum((1, 2))
    assert (missed < 1.1 * even).all()
    assert missed.sum() < even.sum()


@pytest.mark.parametrize("name", K_QUANTS)
def test_rounding_again_moves_values_by_less_than_a_step(name: str) -> None:
    once = FORMATS[name](weight()[8:])  # smaller rows come near the smallest scale that fp16 can hold
    coded = encoded(name, once)
    step = (coded.scale.float() * coded.scales).abs().amax(1, keepdim=True)
    assert ((coded.dequantize() - once.view(-1, 256)).abs() <= step).all()


def test_rows_that_do_not_divide_fall_back_as_in_llama_cpp() -> None:
    assert fitting("q4_k", 1536) == "q4_k"
    instead = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0", "q4_0": "q4_0"}
    assert {name: fitting(name, 576) for name in instead} == instead
    with pytest.raises(InputError, match="whole blocks of 32, got 48"):
        fitting("q6_k", 48)
    with pytest.raises(InputError, match=r"'q3_k'\. Choices: q4_0"):
        fitting("q3_k", 256)


def test_rows_are_rounded_to_8_bits_a_block() -> None:
    rows = weight()
    assert torch.equal(round_q8_0(rows), FORMATS["q8_0"](rows))
    rounded = round_q8_k(rows)
    blocks, seen = rows.view(-1, 256), rounded.view(-1, 256)
    assert (seen - blocks).abs().amax(1).le(blocks.abs().amax(1) / 254 * (1 + 1e-5)).all()
    for values, codes in zip(seen, blocks.abs().amax(1) / 127, strict=True):
        assert codes == 0 or torch.allclose(values / codes, (values / codes).round(), atol=1e-4)
    assert torch.equal(rounded[0], rows[0])
