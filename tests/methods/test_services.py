"""Services as components: their fields, their levels, and the cost of these by hand."""

from __future__ import annotations

from dataclasses import fields
from inspect import getdoc

import pytest
import torch

from repro.core.errors import InputError
from repro.core.registry import registered
from repro.methods.compression.pruning.attn_drop import AttnDrop
from repro.methods.compression.pruning.contextual_sparsity import ContextualSparsity
from repro.methods.compression.pruning.laco import Laco
from repro.methods.compression.pruning.layerwise import Layerwise
from repro.methods.compression.pruning.llm_pruner import LLMPruner
from repro.methods.compression.pruning.shortgpt import ShortGpt
from repro.methods.elastilm.compression import ElastiLM
from repro.methods.elastilm.elastic_levels import sizes_at
from repro.methods.elastilm.lora import RANK, shapes
from repro.methods.elastilm.uneven_cost import UnevenCost, config_of_shape
from repro.methods.serving import llmlingua2
from repro.methods.serving.service import Service, levels_by
from repro.methods.serving.slo import LEVELS
from repro.methods.serving.systems.attn_drop import halves_at
from repro.methods.serving.systems.pfs import PfsService
from repro.models.costs.model_cost import precision
from tiny import model_cost_of
from tiny_dense import CORPUS, dense
from tiny_services import (
    ATTENTION,
    FAMILY,
    LAYER,
    MLP,
    NAMES,
    PREDICTORS,
    SEVEN,
    TABLES,
    built,
    default,
    moved,
    shape,
    system,
)

LAYERWISE = ("laco", "layerwise", "shortgpt")

OPT = {"opt_125m": 125.2e6, "opt_1_3b": 1315.8e6, "opt_2_7b": 2651.6e6, "opt_6_7b": 6658.5e6}
"""Of the checkpoints; what shapes leave out is learned positions, norms and biases."""


# --- what all have in common


def test_nine_services_are_found_by_their_names() -> None:
    assert tuple(registered("service")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_fields_are_plain_and_every_one_is_told_of(name: str) -> None:
    cls = registered("service")[name]
    told = f"{getdoc(Service)}\n{getdoc(cls)}"
    for f in fields(cls):
        assert isinstance(f.default, str | bool | int | float)
        assert f"    {f.name}: " in told
    assert cls(**{f.name: f.default for f in fields(cls)}) == cls()


def test_who_decides_and_who_scores_unless_told_otherwise() -> None:
    chosen = {name: (built(name).decider, built(name).scorer) for name in NAMES}
    assert chosen.pop("elastilm") == ("decision_head", "score_head")
    assert chosen.pop("llmlingua2_cs") == ("largest", "llmlingua2")
    assert set(chosen.values()) == {("largest", "none")}


def test_prompts_stay_whole_where_nothing_scores_them() -> None:
    for name in NAMES:
        assert (default(name).prompts == (1.0,)) == (built(name).scorer == "none")


@pytest.mark.parametrize(
    ("step", "levels"),
    [
        (0.1, LEVELS),
        (0.2, (0.2, 0.4, 0.6, 0.8, 1.0)),
        (0.05, tuple(round(0.05 * i, 2) for i in range(4, 21))),
        (0.8, (0.2, 1.0)),
    ],
)
def test_levels_by_a_step(step: float, levels: tuple[float, ...]) -> None:
    assert levels_by(step) == levels
    found = system("elastilm", step=step)
    assert (tuple(found.levels), found.prompts) == (levels, levels)


@pytest.mark.parametrize("step", [0.0, -0.1, 0.3, 0.07, 2.0])
def test_steps_end_at_the_whole(step: float) -> None:
    with pytest.raises(InputError, match=f"service.step is {step}"):
        levels_by(step)


COMPRESSIONS = {
    "attn_drop": AttnDrop(0.5),
    "elastilm": ElastiLM(0.5),
    "full": None,
    "laco": Laco(0.5),
    "layerwise": Layerwise(0.5),
    "llm_pruner": LLMPruner(0.5),
    "llmlingua2_cs": ContextualSparsity(0.5),
    "pfs": None,
    "shortgpt": ShortGpt(0.5),
}


@pytest.mark.parametrize("name", NAMES)
def test_what_makes_the_real_model_of_a_level(name: str) -> None:
    assert built(name).compression(0.5) == COMPRESSIONS[name]
    assert built(name).compression(1.0) is None, "the model as it is"


def test_elastilms_settings_come_to_its_compression() -> None:
    made = built("elastilm", anchors=0.0, rule="release", lora=False, order="none")
    assert made.compression(0.3) == ElastiLM(0.3, 0.0, "release", "none", lora=False)


def test_without_an_order_units_stay_where_they_are() -> None:
    made = dense("llama-3.1")
    own = [ElastiLM(0.5, order=order).compress(made, CORPUS) for order in ("none", "corpus")]
    assert own[0].figures == own[1].figures, "the same anchors, as many units"
    locked = {int(i) for i in str(own[0].figures["locked_layers"]).split()}
    layer = next(i for i in range(made.config.layers) if i not in locked)
    down = own[0].decoder.layers[layer].down.weight
    assert torch.equal(down, made.layers[layer].down.weight.t()[: len(down)])
    assert not torch.equal(down, own[1].decoder.layers[layer].down.weight)


# --- bills


def test_elastilms_levels_have_locked_layers_and_adapters() -> None:
    config = config_of_shape(SEVEN.shape)
    for level, model_cost in default("elastilm").levels.items():
        kept = sizes_at(config, level, range(6))
        adapters = sum(RANK * (a + b) for a, b in shapes(config, kept).values()) if level < 1 else 0
        assert isinstance(model_cost, UnevenCost)
        assert (model_cost.block_bytes, model_cost.adapters) == (2 * kept.parameters(config), adapters)
    bare = system("elastilm", lora=False)
    assert moved(bare, 0.5) == {"cpu": 0.0}
    assert moved(default("elastilm"), 0.5) == {"cpu": default("elastilm").levels[0.5].adapter_bytes}


def test_llm_pruner_prunes_all_layers_alike() -> None:
    config = config_of_shape(SEVEN.shape)
    for level, model_cost in default("llm_pruner").levels.items():
        assert isinstance(model_cost, UnevenCost)
        assert set(model_cost.blocks) == {model_cost.blocks[0]}
        assert model_cost.block_bytes == 2 * sizes_at(config, level, ()).parameters(config)
        assert model_cost.adapters == 0


@pytest.mark.parametrize("name", LAYERWISE)
def test_whole_layers_are_left_out(name: str) -> None:
    counts = [model_cost.shape.layers for model_cost in default(name).levels.values()]
    assert counts == [6, 9, 12, 16, 19, 22, 25, 28, 32]
    assert default(name).levels[0.5].layers(16, 3, 50) == SEVEN.layers(16, 3, 50)


# Attention is 33.2% of a layer, so that ten of 32 are a tenth of all; without any, 66.8% are left.
HALVES = {1.0: (32, 32), 0.9: (22, 32), 0.8: (12, 32), 0.7: (3, 32), 0.6: (0, 28), 0.5: (0, 23), 0.2: (0, 9)}


@pytest.mark.parametrize("level", HALVES)
def test_attention_goes_before_mlps(level: float) -> None:
    attention, mlps = HALVES[level]
    assert halves_at(SEVEN.shape, level) == (attention, mlps)
    model_cost = default("attn_drop").levels[level]
    weights = attention * ATTENTION + mlps * MLP
    assert weights <= level * 32 * LAYER
    assert model_cost.model_bytes == 2 * (weights + TABLES)
    flops, read = model_cost.layers(model_cost.shape.layers, 7, 100)
    assert model_cost.shape.layers == max(attention, mlps)
    assert flops == 2 * 7 * weights + 4 * 7 * 100 * 4096 * attention
    assert read == 2 * (weights + 2 * 107 * 4096 * attention)
    assert model_cost.cache_bytes(9) == 2 * 2 * 9 * 4096 * attention


@pytest.mark.parametrize("level", [0.9, 0.7, 0.5, 0.3, 0.01])
@pytest.mark.parametrize("family", ["llama-2", "llama-3.1", "qwen-3"])
def test_as_many_halves_are_billed_as_really_stay(family: str, level: float) -> None:
    made = dense(family)
    figures = AttnDrop(level).compress(made, CORPUS).figures
    assert halves_at(model_cost_of(made).shape, level) == (figures["kept_attention"], figures["kept_mlps"])


def test_a_level_of_pfs_is_a_model_by_its_share() -> None:
    found = default("pfs")
    assert list(found.models.values()) == list(PfsService.family)
    assert list(found.levels) == pytest.approx([0.0184, 0.0525, 0.195, 0.392, 0.986], rel=0.01)
    for level, name in found.models.items():
        assert found.levels[level] == FAMILY[name]
        assert level == FAMILY[name].shape.parameters / SEVEN.shape.parameters
    assert found.full == SEVEN
    with pytest.raises(InputError, match="opt_125m_fp16"):
        built("pfs").system(SEVEN)


@pytest.mark.parametrize("name", OPT)
def test_an_opt_shape_has_its_checkpoints_parameters(name: str) -> None:
    assert 0.986 * OPT[name] <= shape(name).parameters <= OPT[name]


def test_the_full_model_serves_as_it_is() -> None:
    assert default("full").levels == {1.0: SEVEN}
    assert moved(default("full"), 1.0) == {}


# --- sparse steps


def test_prompts_are_read_whole_and_steps_are_sparse() -> None:
    found = default("llmlingua2_cs")
    assert set(found.levels.values()) == {SEVEN}
    assert tuple(found.steps) == LEVELS[:-1]
    flops, read = found.steps[0.5].layers(32, 1, 100)
    computed = 32 * (ATTENTION + 3 * 4096 * 5504) + PREDICTORS
    assert flops == 2 * computed + 4 * 100 * 4096 * 32
    assert read == 2 * (computed + 2 * 101 * 4096 * 32)


@pytest.mark.parametrize(("efficiency", "neurons"), [(1.0, 5504), (0.8, 6880), (0.5, 11008), (0.1, 11008)])
def test_inefficient_kernels_cost_as_more_neurons(efficiency: float, neurons: int) -> None:
    step = system("llmlingua2_cs", efficiency=efficiency).steps[0.5]
    assert isinstance(step, UnevenCost)
    assert {block.intermediate for block in step.blocks} == {neurons}


def test_llmlingua2_reads_a_prompt_chunk_by_chunk() -> None:
    weights = 12 * (4 * 768**2 + 2 * 768 * 3072)
    assert weights + 768 * 119547 == llmlingua2.ENCODER.parameters
    ops = llmlingua2.scoring(1030, "cpu", precision("fp16"))
    assert [op.rows for op in ops] == [512, 512, 12]
    assert ops[2].flops == 2 * 12 * weights + 12 * 4 * 12 * 12 * 768
    assert ops[2].bytes == 2 * (weights + 12 * 2 * 12 * 768 + 12 * 768)
    assert llmlingua2.scoring(0, "cpu", precision("fp16")) == ()
    (beside_int8,) = llmlingua2.scoring(10, "npu", precision("int8"))
    assert beside_int8.precision == "int8"
    assert beside_int8.bytes == weights + 2 * 12 * 2 * 12 * 768 + 12 * 768, "activations keep 16 bits"
