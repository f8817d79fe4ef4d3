"""8-bit products are exact, and what a clamp cuts off comes back whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from repro.models.quantization import w8a8
from repro.models.quantization.w8a8 import HIGH, LOW, Int8Weight, RowwiseLinear, W8A8Linear
from repro.models.transformer.linear import PlainLinear

SHAPES = [(1, 3, 5), (2, 64, 16), (7, 33, 131), (64, 96, 64)]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def codes_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(-HIGH, HIGH + 1, shape, dtype=torch.int8, generator=seeded(seed))


def held(weight: Tensor, scale: float = 1.0, bias: Tensor | None = None) -> Int8Weight:
    """An 8-bit weight with these codes."""
    scales = torch.full((len(weight),), scale)
    made = Int8Weight.of(PlainLinear(weight.float() * scale, bias), scales)
    assert torch.equal(made.weight, weight)
    return made


def both(weight: Int8Weight) -> list[Int8Weight]:
    """The weight with each of the kernels that this machine has."""
    return [weight] if weight.blocked is None else [weight, replace(weight, blocked=None)]


def integer(x: Tensor, weight: Tensor) -> Tensor:
    """The product in 64-bit integers."""
    return x.long() @ weight.long().t()


@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_the_product_is_that_of_integers(rows: int, inputs: int, outputs: int) -> None:
    weight = codes_of(outputs, inputs)
    x = torch.randint(LOW, HIGH + 1, (rows, inputs), dtype=torch.int8, generator=seeded(1))
    for one in both(held(weight)):
        assert torch.equal(one.times(x, 1.0).long(), integer(x, weight))


@pytest.mark.parametrize("code", [LOW, 1 - HIGH, 0, HIGH])
@pytest.mark.parametrize("weight", [-HIGH, HIGH])
def test_no_extreme_saturates(code: int, weight: int) -> None:
    """All inputs and weights at the ends of their ranges: pairs of products exceed 16 bits."""
    x = torch.full((17, 1024), code, dtype=torch.int8)
    for one in both(held(torch.full((48, 1024), weight, dtype=torch.int8))):
        assert (one.times(x, 1.0) == 1024 * code * weight).all()


def test_halves_of_a_weight_give_the_same_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on processors whose products of 8 bits saturate."""
    weight, x = codes_of(16, 64), codes_of(5, 64, seed=1)
    monkeypatch.setattr(w8a8, "_int_mm_saturates", lambda: True)
    assert torch.equal(w8a8._integers(x, weight.t()).long(), integer(x, weight))


@pytest.mark.parametrize("reach", [1.0, 1.01, 1.3, 8.0])
@pytest.mark.parametrize("seed", range(4))
def test_with_shadow_the_clamp_changes_nothing(reach: float, seed: int) -> None:
    """Integers exactly: clamped part and rest together are the product of unclamped codes.

    Steps and scales are powers of two and sums stay below 2^24, so that fp32 has every number exactly.
    """
    weight = codes_of(40, 72, seed=seed)
    x = 0.25 * reach * 127 * (2 * torch.rand(11, 72, generator=seeded(seed)) - 1)
    x[:, 20:] = x[:, 20:].clamp(-0.25 * 127, 0.25 * 127)
    steps = (x / 0.25).round()
    exact = integer(steps, weight).double() * 0.25 * 0.5
    for one in both(held(weight, 0.5)):
        linear = W8A8Linear(one, 0.25, shadow=True)
        assert torch.equal(linear(x).double(), exact)
        clamped = integer(steps.clamp(LOW, HIGH), weight).double() * 0.25 * 0.5
        assert torch.equal(replace(linear, shadow=False)(x).double(), clamped)
        beyond = ((steps < LOW) | (steps > HIGH)).any(0).nonzero()[:, 0]
        assert torch.equal(linear.channels(x), beyond)
        assert (len(beyond) > 0) == (reach > 1.1) or 1.0 < reach < 1.1
        assert torch.equal(exact, clamped) == (len(beyond) == 0)


def test_rows_and_outliers_have_scales_of_their_own() -> None:
    """Each row over its own maximum without the outlier column, which is exact but for fp32."""
    weight, bias = codes_of(16, 24), torch.randn(16, generator=seeded(8))
    x = torch.randn(5, 24, generator=seeded(6)) * torch.logspace(-3, 0, 5)[:, None]
    x[3, 7] = 6.0
    linear = RowwiseLinear(held(weight, 0.01, bias), threshold=6.0)
    near = x.index_fill(1, torch.tensor([7]), 0.0)
    step = near.abs().amax(1, keepdim=True) / 127
    whole = (near / step).round() * step
    whole[:, 7] = x[:, 7]
    expected = whole.double() @ (weight.double() * 0.01).t() + bias.double()
    assert torch.allclose(linear(x).double(), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(RowwiseLinear(linear.weight, 6.1)(x).double(), expected, rtol=1e-5, atol=1e-5)


def test_a_row_of_nothing_is_the_bias() -> None:
    bias = torch.randn(16, generator=seeded(8))
    assert torch.equal(RowwiseLinear(held(codes_of(16, 24), 0.01, bias), 6.0)(torch.zeros(1, 24))[0], bias)
