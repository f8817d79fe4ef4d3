"""Every kind of linear against the product it stands for, and layers that lie in one buffer."""

import pytest
import torch
import torch.nn.functional as F

from repro.core.errors import InputError
from repro.models.transformer import linear, quantize, weights
from repro.models.transformer.cache import KVCache
from repro.models.transformer.layer import ALIGNMENT, buffer_bytes, layout
from repro.models.transformer.linear import Int4Linear, PackedLinear, PlainLinear, fastest_linear
from tiny_families import VOCAB, write

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
        assert kind.weight_bytes == 4 * OUTPUTS * INPUTS


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


def test_packing_is_used_where_torch_has_it_and_plain_weights_elsewhere(monkeypatch):
    plain = PlainLinear(torch.randn(8, 8))
    assert isinstance(fastest_linear(plain), PackedLinear)
    monkeypatch.setattr(linear, "_reorder", lambda: None)
    assert fastest_linear(plain) is plain


def test_bf16_stays_plain_where_the_processor_cannot_reorder_it(monkeypatch):
    monkeypatch.setattr(linear, "_has_bf16", lambda: False)
    half, whole = PlainLinear(torch.randn(64, 32).bfloat16()), PlainLinear(torch.randn(64, 32))
    assert fastest_linear(half) is half
    assert isinstance(fastest_linear(whole), PackedLinear)


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
    blocks = weight.view(OUTPUTS, -1, quantize.GROUP)
    return span(blocks)[..., None].expand_as(blocks).reshape(weight.shape)


def test_q4_1_is_within_a_step_of_each_weight():
    weight = torch.randn(OUTPUTS, INPUTS)
    step = steps(weight, lambda blocks: (blocks.amax(2) - blocks.amin(2)) / 15)
    # Half a step for rounding, and up to 8 * 2^-9 of a step because scale and zero are bf16.
    errors = (quantize.q4_1(weight).dequantize() - weight).abs() / step
    assert errors.max() < 0.6
    assert 0.2 < errors.mean() < 0.3  # uniform rounding leaves a quarter of a step


def test_weights_that_came_from_q4_1_survive():
    codes = torch.randint(16, (OUTPUTS, 2, quantize.GROUP))
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen")
    write("qwen-2.5", path)  # biases, and groups of 32 in every width
    return path


@pytest.mark.parametrize("dtype", weights.DTYPES)
def test_a_layer_in_a_buffer_is_the_layer_bit_for_bit(folder, dtype):
    decoder = weights.load(folder, dtype, packed=False)
    tokens, positions = torch.arange(7), torch.arange(7)
    resident = decoder.forward(tokens, positions, None, KVCache(decoder.config, 8))
    streamed, cache = weights.load(folder, dtype, packed=False, resident=False), KVCache(decoder.config, 8)
    assert streamed.layers == [None] * 4
    kind = decoder.layers[0].skeleton()
    buffer = torch.zeros(buffer_bytes(layout(kind)) + 4096, dtype=torch.uint8)
    x = streamed.embed(tokens, positions)
    for i, layer in enumerate(weights.layers(folder, dtype)):
        layer.to_buffer(buffer)
        view = kind.from_buffer(buffer)
        first = view.qkv.tensors().popitem()[1]
        assert buffer.data_ptr() <= first.data_ptr() < buffer.data_ptr() + buffer.nbytes  # a view, no copy
        x = streamed.layer(i, x, positions, None, cache, view)
    assert torch.equal(streamed.head(x), resident)


@pytest.mark.parametrize("dtype", weights.DTYPES)
def test_tensors_lie_aligned_and_apart(folder, dtype):
    slots = layout(next(weights.layers(folder, dtype)))
    assert slots[0].offset == 0
    assert all(slot.offset % ALIGNMENT == 0 for slot in slots)
    ends = [slot.offset + slot.nbytes for slot in slots]
    assert all(end <= after.offset for end, after in zip(ends, slots[1:], strict=False))
    assert 0 <= buffer_bytes(slots) - ends[-1] < ALIGNMENT
    assert len({slot.name for slot in slots}) == len(slots)


def test_a_skeleton_takes_no_memory_and_has_the_same_layout(folder):
    layer = next(weights.layers(folder, "int4"))
    assert layout(layer.skeleton()) == layout(layer)
    assert layer.skeleton().qkv.codes.device.type == "meta"


def test_a_buffer_that_is_too_short_is_refused(folder):
    layer = next(weights.layers(folder))
    need = buffer_bytes(layout(layer))
    with pytest.raises(InputError, match=f"at least {need} bytes"):
        layer.to_buffer(torch.zeros(need - 1, dtype=torch.uint8))
    with pytest.raises(InputError, match="must be uint8"):
        layer.from_buffer(torch.zeros(need))


def test_packed_layers_cannot_be_stored(folder):
    with pytest.raises(TypeError, match="packed=False"):
        layout(weights.load(folder).layers[0])


def test_a_layer_without_weights_is_named(folder):
    decoder = weights.load(folder, resident=False)
    with pytest.raises(InputError, match="layer 0 is not resident"):
        decoder.forward(torch.arange(2), torch.arange(2), None, KVCache(decoder.config, 4))


def test_a_streamed_layer_leaves_the_16_bit_twin_behind(folder):
    layer = weights.load(folder, "int4", packed=True).layers[0]
    assert isinstance(layer.qkv, Int4Linear)
    assert layer.qkv.twin is not None
    buffer = torch.zeros(buffer_bytes(layout(layer)), dtype=torch.uint8)
    layer.to_buffer(buffer)
    assert layer.from_buffer(buffer).qkv.twin is None


def test_fewer_bits_lose_more(folder):
    """Relative errors of all logits, in order; these random weights quantize worse than trained ones."""
    tokens, positions = torch.arange(40) % VOCAB, torch.arange(40)
    logits = {}
    for dtype in weights.DTYPES:
        decoder = weights.load(folder, dtype)
        logits[dtype] = decoder.forward(tokens, positions, None, KVCache(decoder.config, 64))
    exact = logits.pop("float32")
    errors = [float((rounded - exact).norm() / exact.norm()) for rounded in logits.values()]
    assert errors == sorted(errors)
    assert 0.001 < errors[0] < 0.05
    assert errors[-1] < 1.0  # unrelated logits would differ by 1.4
