"""A pass as subgraphs: no work is lost or done twice, and each stands on what the paper's equations name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.device.op import CPU, FLASH, NPU
from repro.methods.mllm_npu.subgraphs import (
    ATTENTION,
    DOWN,
    FFN,
    LINEARS,
    OUTPUT,
    QKV,
    STAGES,
    UP,
    Layout,
    Shadowed,
    Subgraph,
    beyond,
    graphs,
    layers_at_ends,
    shadowed_as_measured,
    shadowed_at_ends,
    static_buffers,
    subgraphs,
    weights,
)
from repro.models.costs.model_cost import ModelCost, Shape, precision

SHAPE = Shape(layers=3, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=128, vocab=100)
MODEL_COST = ModelCost(SHAPE, precision("int8"))
QWEN = ModelCost(
    Shape(
        layers=24,
        hidden=2048,
        heads=16,
        kv_heads=16,
        head_dim=128,
        intermediate=5504,
        vocab=151936,
        tied=False,
    ),
    precision("int8"),
)


def linears(parts: list[Subgraph]) -> list[Subgraph]:
    return [part for part in parts if part.op.kind.startswith("linear")]


@given(chunk=st.integers(1, 40), prompt=st.integers(1, 100))
def test_linears_do_each_padded_row_once(chunk: int, prompt: int) -> None:
    parts = subgraphs(MODEL_COST, Layout(chunk), prompt)
    chunks = -(-prompt // chunk)
    assert len(parts) == chunks * 3 * len(STAGES)
    flops = sum(part.op.flops for part in linears(parts))
    assert flops == pytest.approx(2.0 * chunks * chunk * 3 * SHAPE.layer_weights)


def test_attention_of_all_chunks_is_that_of_a_prompt_under_a_mask_of_chunks() -> None:
    parts = subgraphs(MODEL_COST, Layout(8), 24)
    flops = [p.op.flops for p in parts if p.stage == ATTENTION and p.layer == 0]
    assert flops == [SHAPE.attention_flops(8, keys) for keys in (8, 16, 24)]
    assert all(p.op.on == CPU and p.op.precision == "fp32" for p in parts if p.stage == ATTENTION)


def layers_shadowed(*layers: int, outliers: float = 0.1) -> Shadowed:
    """All linears of some layers, a stage each."""
    return {(layer, stage): outliers for layer in layers for stage in LINEARS}


@given(chunks=st.integers(1, 4), kept=st.sets(st.integers(0, 2)))
def test_dependencies_are_those_of_equations_2_and_3(chunks: int, kept: set[int]) -> None:
    parts = subgraphs(MODEL_COST, Layout(8, shadowed=layers_shadowed(*kept), cold=0.2), 8 * chunks)
    for place, part in enumerate(parts):
        before = [parts[i] for i in part.parents]
        assert all(i < place for i in part.parents)
        if part.op.kind in ("shadow", "load"):
            continue
        step = part.layer * len(STAGES) + STAGES.index(part.stage)
        earlier = {(p.chunk, p.layer * len(STAGES) + STAGES.index(p.stage)) for p in before}
        seen = range(part.chunk + 1) if part.stage == ATTENTION else [part.chunk]
        assert earlier == ({(chunk, step - 1) for chunk in seen} if step else set())


def test_a_shadow_stands_beside_its_linear_and_both_before_what_follows() -> None:
    parts = subgraphs(MODEL_COST, Layout(8, shadowed=layers_shadowed(1), cold=0.2), 8)
    beside = [part for part in parts if part.layer == 1 and part.stage == QKV]
    assert [part.op.on for part in beside] == [NPU, FLASH, CPU]
    linear, read, product = beside
    assert linear.parents == read.parents == product.parents[:-1]
    assert parts[product.parents[-1]] is read
    assert product.op.flops == pytest.approx(0.1 * linear.op.flops)
    assert read.op.bytes == pytest.approx(0.2 * 0.1 * weights(SHAPE, QKV))
    (attention,) = (part for part in parts if part.layer == 1 and part.stage == ATTENTION)
    assert {parts[i].op.kind for i in attention.parents} == {"linear", "shadow"}
    synced = {(part.layer, part.stage) for part in parts if part.op.synced}
    assert synced == {(1, "attention"), (1, "post_norm"), (2, "norm")}


def test_linears_that_keep_outliers_of_their_own_have_shadows_of_their_own_shares() -> None:
    """An FFN is cut where its up or its down keeps them; the up's join the product before the activation."""
    kept = {(0, "qkv"): 0.25, (1, "down"): 0.125, (2, "up"): 0.5}
    parts = subgraphs(MODEL_COST, Layout(8, shadowed=shadowed_as_measured(kept)), 16)
    shadows = {(p.layer, p.stage): p for p in parts if p.op.kind == "shadow" and p.chunk == 1}
    assert shadows.keys() == {(0, QKV), (1, FFN), (2, UP)}
    sizes = {(0, QKV): weights(SHAPE, QKV), (1, FFN): weights(SHAPE, DOWN), (2, UP): weights(SHAPE, UP)}
    for (place, size), share in zip(sizes.items(), kept.values(), strict=True):
        assert shadows[place].op.flops == pytest.approx(share * 2 * 8 * size)
    assert weights(SHAPE, UP) + weights(SHAPE, DOWN) == weights(SHAPE, FFN)
    for layer, stages in {0: [FFN], 1: [UP, FFN], 2: [UP, FFN]}.items():
        ffn = [p for p in parts if (p.chunk, p.layer) == (1, layer) and p.stage in (UP, FFN)]
        linear = [p for p in ffn if p.op.on == NPU]
        assert [p.stage for p in linear] == stages
        assert sum(p.op.flops for p in linear) == 2 * 8 * weights(SHAPE, FFN)
        assert sum(p.op.launches for p in linear) == 3
    down = next(p for p in parts if (p.chunk, p.layer, p.stage) == (1, 1, FFN) and p.op.on == NPU)
    assert [parts[i].stage for i in down.parents] == [UP]
    assert shadows[1, FFN].parents == down.parents
    last = next(p for p in parts if (p.chunk, p.layer, p.stage) == (1, 2, FFN))
    (join,) = (parts[i] for i in last.parents)
    assert (join.op.kind, join.op.on, join.op.synced) == ("norm", CPU, True)
    assert {parts[i].op.kind for i in join.parents} == {"linear", "shadow"}


def test_the_ffns_are_the_first_in_the_window() -> None:
    sizes = {stage: weights(SHAPE, stage) for stage in LINEARS}
    assert sum(sizes.values()) == SHAPE.layer_weights
    assert beyond(MODEL_COST, 0.0) == beyond(MODEL_COST, 3 * SHAPE.layer_weights) == frozenset()
    left = beyond(MODEL_COST, 3 * sizes[FFN] + sizes[QKV])
    assert {stage for _, stage in left} == {QKV, OUTPUT}
    assert (0, QKV) not in left
    parts = subgraphs(MODEL_COST, Layout(8, beyond=left, linear="linear_per_group"), 8)
    for part in linears(parts):
        outside = (part.layer, part.stage) in left
        assert part.op.on == (CPU if outside else NPU)
        assert part.op.kind == ("linear" if outside else "linear_per_group")


def test_layers_at_both_ends_keep_their_outliers() -> None:
    assert layers_at_ends(24, 0.85) == {0, 1, 22, 23}
    assert layers_at_ends(24, 0.0) == set(range(24))
    assert layers_at_ends(24, 1.0) == set()
    assert layers_at_ends(3, 0.6) == {0}
    assert shadowed_at_ends(24, 0.85, 0.1) == layers_shadowed(0, 1, 22, 23)


def test_qwens_graphs_are_those_of_section_3_2() -> None:
    known = graphs(QWEN, 256, 1024)
    assert (known.total, known.shared) == (144, 120)
    assert (known.built, known.separate) == (120 + 4 * 24, 4 * 144)
    assert known.bytes_saved == pytest.approx(3 * 24 * (QWEN.layer_bytes + 256 * static_buffers(QWEN.shape)))
