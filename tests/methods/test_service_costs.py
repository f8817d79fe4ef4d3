"""What services switch, what their levels take on a device, and what lies in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from repro.core.errors import InputError
from repro.device.cost import Machine
from repro.device.device_file import machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import device_with_engine
from repro.device.op import FLASH, Op
from repro.methods.base import Request
from repro.methods.compression.pruning.attn_drop import AttnDrop
from repro.methods.elastilm.elastic_levels import sizes_at
from repro.methods.elastilm.uneven_cost import config_of_shape
from repro.methods.plain.autoregressive import decode
from repro.methods.serving import llmlingua2
from repro.methods.serving.service import profile_of
from repro.methods.serving.slo import LEVELS
from repro.methods.serving.switching import Relayout
from repro.methods.serving.systems.services import PfsService, halves_at
from repro.models.costs.model_cost import ModelCost, precision
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.reports.reference.reference import load_cells
from tiny import model_cost_of, toy
from tiny_dense import CORPUS, dense
from tiny_services import (
    ATTENTION,
    FAMILY,
    HELD,
    LAYER,
    MLP,
    PREDICTORS,
    SEVEN,
    TABLES,
    built,
    default,
    moved,
    shape,
    system,
)

# --- switching


def test_each_system_pays_its_own_switch() -> None:
    half = 2 * sizes_at(config_of_shape(SEVEN.shape), 0.5, ()).parameters(config_of_shape(SEVEN.shape))
    assert moved(default("llm_pruner"), 0.5) == {"cpu": 2 * half}
    assert moved(system("llm_pruner", relayout="paper"), 0.5) == {"cpu": 160 * half}
    assert moved(default("laco"), 0.5) == {FLASH: 2 * 16 * LAYER}
    small = min(default("pfs").levels)
    assert moved(default("pfs"), small) == {FLASH: 2 * shape("opt_125m").parameters}
    for name in ("attn_drop", "layerwise", "llmlingua2_cs", "shortgpt"):
        assert moved(default(name), 0.5) == {}
    assert moved(system("laco", ideal=True), 0.5) == moved(system("pfs", ideal=True), small) == {}
    with pytest.raises(InputError, match=r"fetched is 0\.5"):
        Relayout(0.5)


def test_a_measured_pointer_takes_two_milliseconds_and_predicts_the_switch() -> None:
    """Sec. 3.2's time of a matrix is fitted; Fig. 16(b)'s 0.31 s for 224 of them is not."""
    measured, cells = system("elastilm", pointer="matrix"), load_cells()
    assert measured.fitted == ("elastilm.text.3_2.switch_elastilm",)
    whole = seconds(measured.switching.ops(measured.levels[1.0], "cpu"))
    assert 1e3 * whole / (32 * 7) == pytest.approx(cells[measured.fitted[0]].value_high)
    published = cells["elastilm.fig16b.switch.elastilm"].value_high
    assert published is not None
    assert whole / published == pytest.approx(1.45, rel=0.01)


FITS = {
    "elastilm.text.2_2.matrix_move": ("llm_pruner", {"relayout": "paper"}),
    "elastilm.fig16b.switch.lpruner": ("llm_pruner", {"relayout": "served"}),
    "elastilm.fig16b.switch.elastilm": ("elastilm", {"pointer": "served"}),
}


@pytest.mark.parametrize("cell", FITS)
def test_fitted_switches_take_as_long_as_published(cell: str) -> None:
    """Of one matrix, or of the level that takes longest."""
    name, given = FITS[cell]
    published, found = load_cells()[cell], system(name, **given)
    assert (found.fitted, default(name).fitted) == ((cell,), ())
    quarters = replace(SEVEN.shape, layers=1, intermediate=0, heads=8, kv_heads=8)  # of four such matrices
    model_costs = [ModelCost(quarters, SEVEN.stored)] if "matrix" in cell else list(found.levels.values())
    longest = max(seconds(found.switching.ops(model_cost, "cpu")) for model_cost in model_costs)
    assert published.value_high is not None
    assert longest == pytest.approx(published.value_high * {"ms": 1e-3, "s": 1.0}[published.unit], rel=0.005)


def seconds(ops: Sequence[Op]) -> float:
    """On a Redmi K60 Champion, one after the other."""
    device = EmulatedDevice(phone("redmi_k60_champion"))

    async def switched() -> None:
        for op in ops:
            await device.run(op)

    device.play(switched())
    return device.now


def phone(name: str) -> Machine:
    return machine(device_with_engine(name))


# --- profiles


def test_a_profile_says_what_decoding_takes() -> None:
    found, lengths = default("elastilm"), tuple(range(1, 33))
    toy_profile = profile_of(found, EmulatedDevice(toy()), lengths)
    for level in (0.5, 1.0):
        device = EmulatedDevice(toy())
        session = Session(Engine("model", device, found.levels[level], NoNetwork(), RESIDENT))
        session.start(Prefix.of((0,) * 24))
        made = device.play(decode(Request("", (0,) * 24, 6), device, session))
        costs = toy_profile.costs(level, 24, 6, level)
        assert made.first - made.arrived == pytest.approx(costs.ttft, rel=1e-9)
        assert (made.ended - made.first) / 5 == pytest.approx(costs.tpot, rel=1e-9)


# --- memory


def test_what_lies_in_memory() -> None:
    adapters = sum(model_cost.adapter_bytes for model_cost in default("elastilm").levels.values())
    heads = 2 * 34_447_616  # the paper's "about 40M" parameters
    assert default("elastilm").weights == HELD + adapters + heads
    assert system("elastilm", decider="random", scorer="random").weights == HELD + adapters
    assert 0.01 < adapters / HELD < 0.05, "less than 5% more (3.2)"
    assert default("llm_pruner").weights == HELD + 2 * 4096 * 11008
    for name in ("attn_drop", "full", "layerwise", "shortgpt", "laco"):
        assert default(name).weights == HELD
    assert system("laco", ideal=True).weights == 2 * (169 * LAYER + TABLES)
    sizes = [2 * model_cost.shape.parameters for model_cost in FAMILY.values()]
    assert default("pfs").weights == max(sizes)
    assert system("pfs", ideal=True).weights == sum(sizes)
    encoder = 2 * llmlingua2.ENCODER.parameters
    assert default("llmlingua2_cs").weights == HELD + 2 * PREDICTORS + encoder
    assert system("llmlingua2_cs", scorer="random").weights == HELD + 2 * PREDICTORS


# --- levels


@pytest.mark.parametrize("name", ["laco", "layerwise", "shortgpt"])
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


# --- sparse steps


def test_prompts_are_read_whole_and_steps_are_sparse() -> None:
    found = default("llmlingua2_cs")
    assert set(found.levels.values()) == {SEVEN}
    assert tuple(found.steps) == LEVELS[:-1]
    flops, read = found.steps[0.5].layers(32, 1, 100)
    computed = 32 * (ATTENTION + 3 * 4096 * 5504) + PREDICTORS
    assert flops == 2 * computed + 4 * 100 * 4096 * 32
    assert read == 2 * (computed + 2 * 101 * 4096 * 32)


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
