"""What shapes cost: the parameters that were published, and an encoder-decoder worked out by hand."""

import pytest
import yaml

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.models.costs.model_cost import PRECISIONS, EncoderShape, ModelCost, Shape, precision

PUBLISHED = {
    "mt5_small": 300.2e6,
    "mt5_large": 1229.6e6,
    "t5_small": 60.5e6,
    "t5_base": 222.9e6,
    "t5_large": 737.7e6,
    "bart_base": 139.4e6,
    "bart_large": 406.3e6,
    "gpt2": 124.4e6,
    "gpt2_large": 774.0e6,
    "llama_7b": 6738.4e6,
    "llama_13b": 13015.9e6,
    "llama_33b": 32528.9e6,
    "llama_65b": 65285.7e6,
    "llama_3_1_8b": 8030.3e6,
    "qwen3_0_6b": 596.0e6,
    "qwen3_4b": 4022.5e6,
    "qwen3_8b": 8190.7e6,
    "qwen3_14b": 14768.3e6,
}
"""Of the checkpoints themselves; norms, biases and learned positions, which we leave out, are up to 1.3%."""

# Decoder: 3 layers, rows of 8, 2 heads of 3, a gated MLP of 16. Encoder: 2 layers, an MLP of 12.
SHAPE = Shape(3, 8, 2, 2, 3, 16, 10, encoder=EncoderShape(2, 12))
MODEL_COST = ModelCost(SHAPE, precision("fp16"))
ATTENTION = 4 * 8 * 6
SOURCE = 2 * 8 * 6
LAYER = 2 * ATTENTION + 3 * 8 * 16
ENCODER_LAYER = ATTENTION + 3 * 8 * 12


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shape_has_its_checkpoints_parameters(name: str) -> None:
    shape = Shape.parse(
        yaml.safe_load((conf_dir() / "model" / "shape" / f"{name}.yaml").read_text(encoding="utf-8"))
    )
    assert shape.parameters == pytest.approx(PUBLISHED[name], rel=0.014)
    assert shape.parameters <= PUBLISHED[name]


def test_an_encoders_weights_count() -> None:
    assert SHAPE.layer_weights == LAYER == 768
    assert SHAPE.encoder_layer_weights == ENCODER_LAYER == 480
    assert SHAPE.parameters == 3 * LAYER + 2 * ENCODER_LAYER + 2 * 8 * 10
    assert MODEL_COST.encoder_layer_bytes == 2 * ENCODER_LAYER


def test_later_passes_read_them() -> None:
    flops = 2 * 4 * (LAYER - SOURCE) + 4 * 4 * (7 + 5) * 6
    moved = 2 * (LAYER - SOURCE) + 2 * 2 * (7 + 5 + 4) * 6
    assert MODEL_COST.layers(1, row_count=4, context_length=7, prompt_length=5) == (flops, moved)


def test_autogptq_keeps_a_scale_and_a_zero_point_for_128_weights() -> None:
    assert PRECISIONS["gptq4"].bits == (128 * 4 + 16 + 4) / 128


PLAIN = {"layers": 2, "hidden": 8, "heads": 2, "kv_heads": 2, "head_dim": 4, "intermediate": 16, "vocab": 10}
MEDUSA = {"medusa": 2, "hidden": 8, "vocab": 10, "tied": True}


@pytest.mark.parametrize("whole", [PLAIN, MEDUSA], ids=["decoder", "medusa"])
@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "8", float("nan")])
def test_a_dimension_below_one_is_named(whole: dict[str, int], wrong: object) -> None:
    for name in whole.keys() - {"medusa", "tied"}:
        with pytest.raises(InputError, match=rf"shape.*\b{name}"):
            Shape.parse({**whole, name: wrong})
