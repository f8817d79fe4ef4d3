"""Limits of mllm-NPU's prefill and of ElastiLM's levels in closed form."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from repro.device.cost import Curve, Machine
from repro.device.emulated import EmulatedDevice
from repro.device.op import CPU, NPU
from repro.methods.mllm_npu.mllm_npu import MllmNpu
from repro.methods.serving.service import profile_of
from repro.methods.serving.service_profile import DeviceProfile
from tiny_limits import LAYERS, PROMPT, SHAPE, TARGET, Values, machine, run
from tiny_services import LAYER, NAMES, default

# --- mllm-NPU: a launch a matrix product on the NPU, one a float operator on the CPU

NPU_MS, CPU_MS = 2, 3
PRODUCTS = 3 + 1 + 2
"""Of a layer: Q, K and V; the output; two of an FFN that is not gated."""
FLOAT_OPS = 3
"""Of a layer: the norm, the attention, the norm after it."""
ENDS_MS = 2 * CPU_MS
"""Looking up the embedding, and the output projection."""


def prefill(
    npu_ms: float,
    cpu_ms: float,
    chunks: int,
    layers: int = LAYERS,
    order: str = "out_of_order",
    **changes: Any,
) -> Values:
    """The figures of a prompt of so many chunks, whose linears have no outliers."""
    processors = {CPU: {"launch": cpu_ms / 1e3}, NPU: {"launch": npu_ms / 1e3}}
    model_costs = {"target": replace(TARGET, shape=replace(SHAPE, layers=layers))}
    method = MllmNpu(chunk=PROMPT // chunks or 1, order=order, shadow=False, **changes)
    values, _ = run(method, machine(processors=processors), tokens=3, model_costs=model_costs)
    return values


@pytest.mark.parametrize("layers", [1, LAYERS])
@pytest.mark.parametrize("order", ["in_order", "out_of_order"])
def test_one_chunk_is_a_chain_of_its_subgraphs(layers: int, order: str) -> None:
    values = prefill(NPU_MS, CPU_MS, chunks=1, layers=layers, order=order)
    chunk_ms = layers * (PRODUCTS * NPU_MS + FLOAT_OPS * CPU_MS)
    assert values["ttft"] == values["prefill_seconds"] == pytest.approx((chunk_ms + ENDS_MS) / 1e3)
    assert values["time_per_token"] == pytest.approx((layers + 2) * CPU_MS / 1e3), "decoding is the CPU's"


@pytest.mark.parametrize("order", ["in_order", "out_of_order"])
def test_beside_a_processor_that_takes_no_time_the_other_one_is_always_busy(order: str) -> None:
    npu = prefill(NPU_MS, 0, chunks=5, order=order)
    assert npu["ttft"] == pytest.approx(5 * LAYERS * PRODUCTS * NPU_MS / 1e3)
    assert npu["prefill_bubbles"] == pytest.approx(0.0, abs=1e-9)
    cpu = prefill(0, CPU_MS, chunks=5, order=order)
    assert cpu["ttft"] == pytest.approx((5 * LAYERS * FLOAT_OPS * CPU_MS + ENDS_MS) / 1e3)


def test_many_chunks_take_between_the_busier_processor_s_work_and_all_work() -> None:
    chunks = 5
    npu_ms, cpu_ms = chunks * LAYERS * PRODUCTS * NPU_MS, chunks * LAYERS * FLOAT_OPS * CPU_MS
    in_order, out_of_order = (
        1e3 * float(str(prefill(NPU_MS, CPU_MS, chunks, order=order)["ttft"])) - ENDS_MS
        for order in ("in_order", "out_of_order")
    )
    assert max(npu_ms, cpu_ms) <= out_of_order <= in_order <= npu_ms + cpu_ms
    # The first norm comes before the NPU has anything to do; everything else of the CPU's can hide.
    assert out_of_order <= npu_ms + cpu_ms / chunks


def test_outliers_that_the_cpu_multiplies_beside_the_npu_cost_what_does_not_hide() -> None:
    """A shadow product takes a launch of the CPU's; the NPU's linear beside it is no shorter."""
    values = {}
    for shadow in (False, True):
        processors = {CPU: {"launch": 1e-3}, NPU: {"launch": 2e-3}}
        method = MllmNpu(chunk=PROMPT, shadow=shadow, pruned=0.0, cold=0.0)
        values[shadow], _ = run(method, machine(processors=processors), tokens=2)
    assert values[True]["ttft"] == pytest.approx(values[False]["ttft"])


# --- ElastiLM and its baselines: LLaMA-7B in fp16

ATTENTION_FREE = Curve(((1.0, inf),))
HEAD = 4096 * 32000
PROMPTS = (1, 64, 256)


def profiled(name: str, on: Machine) -> DeviceProfile:
    return profile_of(default(name), EmulatedDevice(on), PROMPTS)


def computing() -> Machine:
    """1 T operations/s and nothing else."""
    return machine(peak={"fp16": 1e12}, attention=ATTENTION_FREE)


def reading() -> Machine:
    """10 GB/s and nothing else."""
    return machine(peak={"fp16": inf}, bandwidth=1e10)


def layer_weights(name: str, level: float) -> float:
    """Weights of a level's layers, adapters included, counted from its shapes."""
    cost: Any = default(name).levels[level]
    if not hasattr(cost, "blocks"):
        return float(cost.shape.layers * cost.shape.layer_weights)
    blocks = [
        4096 * b.head_dim * (2 * b.heads + 2 * b.kv_heads) + 3 * 4096 * b.intermediate for b in cost.blocks
    ]
    return float(sum(blocks) + cost.adapters)


@pytest.mark.parametrize("name", ["full", "elastilm", "llm_pruner", "shortgpt", "layerwise", "laco"])
def test_a_level_computes_and_reads_its_own_weights(name: str) -> None:
    by_computing, by_reading = profiled(name, computing()), profiled(name, reading())
    for level in default(name).levels:
        weights = layer_weights(name, level)
        layers = default(name).levels[level].shape.layers
        for tokens in PROMPTS:
            found = by_computing.levels[level]
            assert found.prefill_at(tokens).seconds == pytest.approx(2 * (tokens * weights + HEAD) / 1e12)
            assert found.step_at(tokens).seconds == pytest.approx(2 * (weights + HEAD) / 1e12)
        if name in ("full", "shortgpt", "layerwise", "laco"):  # whose layers keep all heads
            cached = 2 * layers * 2 * (64 + 1) * 4096
            read = 2 * (weights + HEAD + 4096) + cached
            assert by_reading.levels[level].step_at(64).seconds == pytest.approx(read / 1e10)


def test_half_the_layers_take_half_the_time_without_the_projection() -> None:
    found = profiled("shortgpt", computing())
    full = 2 * 64 * 32 * LAYER / 1e12
    assert found.levels[0.5].prefill_at(64).seconds == pytest.approx(full / 2 + 2 * HEAD / 1e12)


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_model_and_prompt_cost_what_the_objectives_are_relative_to(name: str) -> None:
    """A request at levels 1 and 1 takes what objectives of 100% allow: deciding and switching are free."""
    found, answer = profiled(name, computing()), 21
    whole = found.whole(200, answer)
    level = max(found.levels)
    same = found.costs(level, 200, answer, level)
    if name != "pfs":
        assert (same.ttft, same.tpot) == (whole.ttft, whole.tpot)
    assert whole.ttft == pytest.approx(2 * (200 * 32 * LAYER + HEAD) / 1e12)
    assert whole.tpot == pytest.approx(2 * (32 * LAYER + HEAD) / 1e12)
