"""mllm-NPU: the text is the target's own however prompts are cut and ordered, and each technique pays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from concurrency import most_at_once
from repro.device.cost import Curve, Machine
from repro.device.emulated import EmulatedDevice
from repro.device.op import CPU, NPU
from repro.methods.base import Generation, Request, Serving
from repro.methods.mllm_npu.mllm_npu import MllmNpu
from repro.methods.mllm_npu.scheduling import ORDERS
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.forward.network import DecoderNetwork, Network, NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from tiny import alone, decoder, model_cost_of, plain, processor, toy

FAMILY = "llama-2"
SHAPE = Shape(layers=6, hidden=64, heads=4, kv_heads=4, head_dim=16, intermediate=160, vocab=50)
SLOWER = {"linear_per_group": 9.0, "linear_flat": 1.5}


def machine(npu_has: dict[str, Any] | None = None, **changes: Any) -> Machine:
    """An NPU four times as fast as the CPU, which takes 2 s to build a graph."""
    own = {"peak": {"int8": 4e9, "fp32": 1e7}, "graph_seconds": 2.0, "slower": SLOWER, "launch": 1e-6}
    npu = processor(**{**own, **(npu_has or {})})
    processors = {CPU: processor(launch=1e-6, slots=2), NPU: npu}
    return toy(processors=processors, dram_bandwidth=1e12, **changes)


def served(
    method: MllmNpu,
    prompt: tuple[int, ...],
    network: Network | None = None,
    model_cost: ModelCost | None = None,
    npu_has: dict[str, Any] | None = None,
    **more: Any,
) -> tuple[Generation, EmulatedDevice, Serving]:
    """A prepared method's answer to a prompt, twice, so that what is built for each shows; the second one."""
    device = EmulatedDevice(machine(npu_has))
    model_cost = model_cost or ModelCost(SHAPE, precision("int8"))
    (placement,) = method.places().values()
    target = Session(Engine("target", device, model_cost, network or NoNetwork(), placement))
    serving = device.play(method.prepare(device, {"target": target}))
    request = Request(**{"id": "a", "prompt": prompt, "max_tokens": 2, **more})
    for _ in range(2):
        target.start(Prefix.of(prompt))
        generation = device.play(serving.serve(request, device, {"target": target}))
    return generation, device, serving


def prefill(method: MllmNpu, tokens: int = 256) -> float:
    generation, _, _ = served(method, (0,) * tokens)
    return generation.first - generation.arrived


@given(
    tokens=st.lists(st.integers(0, 30), min_size=1, max_size=23),
    chunk=st.integers(1, 9),
    order=st.sampled_from(sorted(ORDERS)),
    shadow=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_the_text_is_the_targets_own_however_it_is_cut(
    tokens: list[int], chunk: int, order: str, shadow: bool
) -> None:
    made, prompt = decoder(FAMILY), tuple(tokens)
    method = MllmNpu(chunk=chunk, order=order, shadow=shadow, pruned=0.5)
    generation, _, _ = served(method, prompt, DecoderNetwork(made), model_cost_of(made), max_tokens=4)
    assert generation.tokens == plain(made, Request("a", prompt, max_tokens=4))


@given(tokens=st.lists(st.integers(0, 30), min_size=1, max_size=23), chunk=st.integers(1, 9))
@settings(max_examples=15, deadline=None)
def test_logits_of_chunks_are_those_of_the_whole_prompt(tokens: list[int], chunk: int) -> None:
    made = decoder(FAMILY)
    network = DecoderNetwork(made)
    for end in [*range(chunk, len(tokens), chunk), len(tokens)]:
        step = network.begin([Prefix.of(tokens[:end])])
        step.layers(0, made.config.layers)
        (row,) = step.rows()
    # As in test_lossless: rounding moves these logits by a few 1e-5, a misplaced part by 1e-2.
    assert torch.allclose(row.logits, alone(made, tokens), atol=1e-4)


def test_graphs_are_built_once_and_without_chunks_at_every_request() -> None:
    _, device, serving = served(MllmNpu(chunk=64), (0,) * 256)
    assert [s.kind for s in device.trace if s.kind == "build"] == ["build"]
    assert serving.figures["graph_seconds"] == pytest.approx(2.0, abs=1e-3)
    assert (serving.figures["subgraphs"], serving.figures["shared_subgraphs"]) == (36, 30)
    assert (serving.figures["graphs_shared"], serving.figures["graphs_separate"]) == (30 + 4 * 6, 4 * 36)
    assert float(str(serving.figures["ffn_per_token"])) > float(str(serving.figures["qkv_per_token"])) > 0
    generation, device, serving = served(MllmNpu(chunks=False, shadow=False, order="in_order"), (0,) * 256)
    assert [s.kind for s in device.trace if s.kind == "build"] == ["build", "build"]
    assert generation.first - generation.arrived > 2.0
    assert "graph_seconds" not in serving.figures


def test_each_technique_alone_makes_a_prefill_faster() -> None:
    steps = [
        MllmNpu(chunks=False, shadow=False, order="in_order"),
        MllmNpu(chunk=64, shadow=False, order="in_order"),
        MllmNpu(chunk=64, order="in_order"),
        MllmNpu(chunk=64),
    ]
    naive, chunk, outlier, ordered = map(prefill, steps)
    assert naive > chunk > outlier > ordered
    assert prefill(MllmNpu(chunk=64, shapes=False)) > ordered
    assert prefill(MllmNpu(chunk=64, window=1e4)) > ordered


def test_a_processor_does_one_subgraph_at_a_time_and_decoding_is_the_cpus() -> None:
    generation, device, _ = served(MllmNpu(chunk=64, pruned=0.5), (0,) * 200)
    inside = list(device.trace.within(generation.arrived, generation.first))
    layers = [s for s in inside if "chunk" in s.name]
    for on in (CPU, NPU):
        assert most_at_once(s for s in layers if s.on == on) == 1
    assert most_at_once(layers) > 1
    assert {s.rows for s in layers if s.on != "flash"} == {64}
    decoding = device.trace.within(generation.first, generation.ended)
    assert {s.on for s in decoding} == {CPU}


def test_linears_beyond_all_sessions_run_on_the_cpu() -> None:
    """What the engine's sessions address counts; `window` takes its place."""
    held = ModelCost(SHAPE, precision("int8")).layer_bytes * SHAPE.layers
    half = {"session_bytes": held / 2}

    def beyond(method: MllmNpu, **sessions: Any) -> object:
        return served(method, (0,) * 64, npu_has=sessions)[2].figures["linears_beyond"]

    method = MllmNpu(chunk=64)
    assert beyond(method) == 0, "without a limit"
    assert beyond(method, sessions=3, **half) == 0
    assert beyond(method, sessions=1, **half) == beyond(MllmNpu(chunk=64, window=held / 2)) == 12


def test_every_product_pays_the_start() -> None:
    """Seven products a layer wait for the start; the figures have the first chunk's work."""
    _, _, without = served(MllmNpu(chunk=64, shadow=False), (0,) * 64)
    start = {"start": {"int8": Curve(((1.0, 0.25),))}}
    _, _, starts = served(MllmNpu(chunk=64, shadow=False), (0,) * 64, npu_has=start)
    npu = [float(str(s.figures["chunk_npu_seconds"])) for s in (without, starts)]
    assert npu[1] - npu[0] == pytest.approx(7 * 0.25 * SHAPE.layers)
    assert starts.figures["chunk_cpu_seconds"] == pytest.approx(without.figures["chunk_cpu_seconds"])
