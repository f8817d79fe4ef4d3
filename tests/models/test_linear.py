"""Every kind of linear against the product it stands for, and layers that lie in one buffer."""

import pytest
import torch
import torch.nn.functional as F

from repro.core.errors import InputError
from repro.models.transformer import linear, quantize
from repro.models.transformer.linear import PlainLinear, fastest_linear

OUTPUTS, INPUTS = 100, 64
ROWS = sorted({1, linear.INT8_ROWS, linear.INT8_ROWS + 1, linear.INT4_ROWS, linear.INT4_ROWS + 1, 40})


@pytest.fixture(params=[False, True], ids=["plain", "biased"])
def weight_and_bias(request):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(OUTPUTS, INPUTS, generator=generator)
    return weight, torch.randn(OUTPUTS, generator=generator) if request.param else None


def inputs(rows):
    return torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(rows))


def bfloat16_bound(x, weight):
    """Rounding of a bf16 product: 2^-8 each for inputs and result, over sums of magnitudes, with slack."""
    return 3 * 2.0**-8 * (x.abs() @ weight.abs().t() + 1.0)


@pytest.mark.parametrize("rows", ROWS)
def test_plain_and_packed_fp32_are_the_product(weight_and_bias, rows):
    weight, bias = weight_and_bias
    x = inputs(rows)
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double()).float()
    for kind in (PlainLinear(weight, bias), fastest_linear(PlainLinear(weight, bias))):
        assert kind(x).dtype == torch.float32
        # 64 products of about 1 each: a few roundings of 6e-8 * 10
        torch.testing.assert_close(kind(x), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("rows", ROWS)
def test_plain_and_packed_bf16_are_the_product_within_its_rounding(weight_and_bias, rows):
    weight, bias = weight_and_bias
    plain = PlainLinear(weight.bfloat16(), None if bias is None else bias.bfloat16())
    x = inputs(rows)
    expected = F.linear(x, weight, bias)
    for kind in (plain, fastest_linear(plain)):
        y = kind(x)
        assert y.dtype == torch.bfloat16
        assert ((y.float() - expected).abs() <= bfloat16_bound(x, weight)).all()


@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_int8_is_within_half_a_step_of_each_weight(weight_and_bias, rows, twin):
    weight, bias = weight_and_bias
    x = inputs(rows)
    y = quantize.int8_linear(weight, bias, twin)(x).float()
    # The scale itself is rounded to bf16, which moves a code by up to 127 * 2^-9 of a step more.
    step = weight.abs().amax(1) / 127
    bound = x.abs().sum(1)[:, None] * (0.75 * step)[None] + bfloat16_bound(x, weight)
    assert ((y - F.linear(x, weight, bias)).abs() <= bound).all()


@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_int4_multiplies_the_weight_that_its_codes_stand_for(weight_and_bias, rows, twin):
    weight, bias = weight_and_bias
    x = inputs(rows)
    stands_for = quantize.q4_1(weight).dequantize()
    y = quantize.int4_linear(weight, bias, twin)(x).float()
    assert y.shape == (rows, OUTPUTS)
    assert ((y - F.linear(x, stands_for, bias)).abs() <= bfloat16_bound(x, weight)).all()


def steps(weight, span):
    """The step of each weight's block, `[outputs, inputs]`; `span` measures a block."""
    blocks = weight.view(OUTPUTS, -1, quantize.GROUP_SIZE)
    return span(blocks)[..., None].expand_as(blocks).reshape(weight.shape)


def test_q4_1_is_within_a_step_of_each_weight():
    weight = torch.randn(OUTPUTS, INPUTS)
    step = steps(weight, lambda blocks: (blocks.amax(2) - blocks.amin(2)) / 15)
    # Half a step for rounding, and up to 8 * 2^-9 of a step because scale and zero are bf16.
    errors = (quantize.q4_1(weight).dequantize() - weight).abs() / step
    assert errors.max() < 0.6
    assert 0.2 < errors.mean() < 0.3  # uniform rounding leaves a quarter of a step


def test_weights_that_came_from_q4_1_survive():
    codes = torch.randint(16, (OUTPUTS, 2, quantize.GROUP_SIZE))
    codes[..., 0], codes[..., 1] = 0, 15  # as in a block whose extremes set the scale
    weight = (codes * 0.0137 - 0.09).view(OUTPUTS, -1)
    assert torch.equal(quantize.q4_1(weight).codes.long(), codes.view(OUTPUTS, -1))
    assert (quantize.q4_1(weight).dequantize() - weight).abs().max() < 0.04 * 0.0137


def test_a_constant_block_and_a_zero_weight_stay_finite():
    for value in (0.0, 0.25):
        weight = torch.full((16, 32), value)
        assert torch.equal(quantize.q4_1(weight).dequantize(), weight)
        codes, scale = quantize.int8_codes(weight)
        assert torch.isfinite(codes.float() * scale.float()[:, None]).all()


def test_inputs_that_do_not_divide_into_groups_are_refused():
    with pytest.raises(InputError, match="whole groups of 32, got 48"):
        quantize.int4_linear(torch.randn(16, 48))
