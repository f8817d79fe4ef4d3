"""What services switch, what their levels take on a device, what lies in memory, and their targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from repro.core.errors import InputError
from repro.device.cost import Machine
from repro.device.device_file import machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import device_with_engine
from repro.device.op import FLASH, Op
from repro.methods.base import Request
from repro.methods.elastilm.elastic_levels import sizes_at
from repro.methods.elastilm.uneven_cost import config_of_shape
from repro.methods.plain.autoregressive import decode
from repro.methods.serving import llmlingua2
from repro.methods.serving.service import profile_of
from repro.methods.serving.service_profile import DeviceProfile
from repro.methods.serving.slo import LEVELS
from repro.methods.serving.switching import Relayout
from repro.models.costs.model_cost import ModelCost
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.families import config_of
from repro.reports.reference.reference import load_cells
from repro.scenarios.serving.asked import read_model
from tiny import toy
from tiny_services import (
    FAMILY,
    HELD,
    LAYER,
    NAMES,
    PREDICTORS,
    SEVEN,
    TABLES,
    default,
    moved,
    of_conf,
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


def test_a_pointer_is_a_launch_a_matrix() -> None:
    (op,) = default("elastilm").switching.ops(default("elastilm").levels[1.0], "cpu")
    assert (op.launches, op.bytes) == (32 * 7, 0.0)


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


@cache
def profile(name: str) -> DeviceProfile:
    return profile_of(default(name), EmulatedDevice(toy()), (1, 64, 256))


@pytest.mark.parametrize("name", NAMES)
def test_a_smaller_level_takes_less_and_the_full_one_is_the_measure(name: str) -> None:
    found = profile(name)
    for n in found.full.prompts:
        assert found.full.prefill_at(n) == pytest.approx(profile("full").full.prefill_at(n), rel=1e-9)
        assert found.full.step_at(n) == pytest.approx(profile("full").full.step_at(n), rel=1e-9)
    by_size = [found.levels[level] for level in sorted(found.levels)]
    for small, large in pairwise(by_size):
        for n in found.full.prompts:
            assert name == "llmlingua2_cs" or small.prefill_at(n).seconds < large.prefill_at(n).seconds
            assert small.step_at(n).seconds < large.step_at(n).seconds
    if 1.0 in found.levels:
        assert found.costs(1.0, 100, 20, 1.0) == found.whole(100, 20), "to the last digit"


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


def test_switches_on_the_toy_machine() -> None:
    longest = {name: max(one.switch.seconds for one in profile(name).levels.values()) for name in NAMES}
    assert longest["layerwise"] == 0.0
    assert longest["elastilm"] < longest["llm_pruner"] < longest["pfs"]
    assert longest["pfs"] == pytest.approx(1e-6 + 2 * shape("opt_6_7b").parameters / 1e8)


def test_sparse_steps_show_in_the_profile_and_prefills_do_not() -> None:
    found = profile("llmlingua2_cs")
    for level in LEVELS[:-1]:
        pairs = zip(found.levels[level].prefill, found.full.prefill, strict=True)
        assert all(own == pytest.approx(full, rel=1e-9) for own, full in pairs)
    step = default("llmlingua2_cs").steps[0.5]
    machine_ = toy()
    read = step.layers(32, 1, 64)[1] + step.head(1)[1] + step.embed(1)[1]
    launches = 34 * machine_.processors["cpu"].launch
    spent = found.levels[0.5].step_at(64).seconds
    assert spent == pytest.approx(launches + read / machine_.processors["cpu"].bandwidth, rel=1e-6)


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


def test_keys_and_values_of_the_largest_level_lie_beside_weights() -> None:
    cache = 2 * 2 * 1000 * 32 * 4096
    assert default("elastilm").resident_bytes(1000) == default("elastilm").weights + cache
    assert default("full").resident_bytes(0) == HELD
    as_wide_and_deep = default("pfs").weights + cache  # OPT-6.7B as LLaMA-7B
    assert default("pfs").resident_bytes(1000) == as_wide_and_deep


# --- targets

LLAMA = {"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 2048}
LLAMA |= {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "tie_word_embeddings": False,
}
SEVENTH = {**LLAMA, "intermediate_size": 11008, "vocab_size": 32000}
EIGHTH = {**LLAMA, "intermediate_size": 14336, "vocab_size": 128256, "num_key_value_heads": 8}
ORCA = {**SEVENTH, "num_hidden_layers": 26, "hidden_size": 3200, "intermediate_size": 8640}
TARGETS = {
    "llama_7b_fp16": ("llama_7b", SEVENTH),
    "vicuna_7b_fp16": ("vicuna_7b", SEVENTH),
    "llama3_8b_fp16": ("llama3_8b", EIGHTH),
    "llama3_8b_instruct_fp16": ("llama3_8b_instruct", EIGHTH),
    "orca_mini_3b_fp16": ("orca_mini_3b", ORCA),
}
"""The paper's models, their own checkpoints, and what these checkpoints' published configurations say."""


@pytest.mark.parametrize("name", TARGETS)
def test_a_targets_own_checkpoint_has_the_shape_that_is_billed(name: str) -> None:
    checkpoint, raw = TARGETS[name]
    assert of_conf("model", "checkpoint", checkpoint)["shares_embeddings_with"] is None
    found = read_model(name)
    assert found.shape is not None
    own, billed = config_of(raw), config_of_shape(found.shape)
    same = ("vocab", "hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "gated", "tied")
    assert [getattr(own, one) for one in same] == [getattr(billed, one) for one in same]
    assert found.precision == "fp16"
