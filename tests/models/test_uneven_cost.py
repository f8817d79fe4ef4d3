"""What a level of an elastic model is billed: its true parameters, and its adapters."""

from __future__ import annotations

import pytest
import torch
import yaml

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.methods.elastilm.elastic_levels import sizes_at
from repro.methods.elastilm.lora import RANK, Adapter, Lora, Site, shapes
from repro.methods.elastilm.submodels import LayerSizes
from repro.methods.elastilm.uneven_cost import UnevenCost, config_of_shape, sub_cost
from repro.methods.serving.slo import LEVELS
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.transformer.config import DecoderConfig
from tiny import model_cost_of
from tiny_dense import dense

FAMILY = "llama-3.1"


def shape(name: str) -> Shape:
    return Shape.parse(
        yaml.safe_load((conf_dir() / "model" / "shape" / f"{name}.yaml").read_text(encoding="utf-8"))
    )


SEVEN = ModelCost(shape("llama_7b"), precision("fp16"))


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_billed_by_its_true_parameters(level: float) -> None:
    config = config_of_shape(SEVEN.shape)
    kept = sizes_at(config, level, range(6))
    model_cost = sub_cost(SEVEN, kept, with_adapters=False)
    weights = kept.parameters(config)
    assert model_cost.block_bytes == 2 * weights
    assert model_cost.model_bytes == 2 * (weights + SEVEN.shape.table_weights)
    flops, moved = model_cost.layers(32, 7, 100)
    units = sum(kept.units)
    assert flops == 2 * 7 * weights + 4 * 7 * 100 * units * 128
    assert moved == 2 * (weights + 2 * 107 * units * 128)
    assert model_cost.cache_bytes(9) == 2 * 2 * 9 * units * 128
    assert model_cost.layers(8, 7, 100) == pytest.approx((flops / 4, moved / 4))


def test_the_whole_costs_what_it_always_did_and_has_no_adapters() -> None:
    model_cost = sub_cost(SEVEN, sizes_at(config_of_shape(SEVEN.shape), 1.0, ()))
    assert model_cost.adapters == 0
    assert model_cost.layers(32, 5, 60) == SEVEN.layers(32, 5, 60)
    same = ("layer_bytes", "model_bytes", "table_bytes")
    assert [getattr(model_cost, name) for name in same] == [getattr(SEVEN, name) for name in same]
    with pytest.raises(InputError, match="3 layers are billed"):
        UnevenCost(SEVEN.shape, SEVEN.stored, (SEVEN.shape,) * 3)


def test_adapters_are_billed_as_they_are() -> None:
    made = dense(FAMILY)
    kept = sizes_at(made.config, 0.5, (1,))
    model_cost = sub_cost(model_cost_of(made), kept)
    adapters = lora_of(made.config, kept)
    assert model_cost.adapters == adapters.parameters > 0
    bare = sub_cost(model_cost_of(made), kept, with_adapters=False)
    layers = made.config.layers
    assert model_cost.layers(layers, 3, 0)[0] - bare.layers(layers, 3, 0)[0] == 2 * 3 * model_cost.adapters


def lora_of(config: DecoderConfig, kept: LayerSizes) -> Lora:
    """Random adapters beside all matrices of a sub-model."""
    chance = torch.Generator().manual_seed(2)
    adapters: dict[Site, Adapter] = {}
    for site, (inputs, outputs) in shapes(config, kept).items():
        narrow = torch.randn(RANK, inputs, generator=chance)
        adapters[site] = Adapter(narrow, 0.05 * torch.randn(outputs, RANK, generator=chance))
    return Lora(adapters, kept, "order")
