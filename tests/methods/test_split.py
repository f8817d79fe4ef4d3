"""A layer's work divided between two processors: nothing is lost, and time is that of the slower half."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.device.cost import Curve, Flash, Machine, Processor
from repro.device.emulated import EmulatedDevice
from repro.device.op import CPU, GPU
from repro.methods.ghidorah.division import divide
from repro.methods.ghidorah.partition import AttentionExtent, Split, attention, stages
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix

SHAPE = Shape(layers=4, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=128, vocab=100)
MODEL_COST = ModelCost(SHAPE, precision("fp16"))


def device(sync: float = 0.0, bandwidth: float = 1e9) -> EmulatedDevice:
    processor = Processor({"fp16": 1e9}, 1e8)
    flash = Flash(Curve(((1.0, 1e9),)))
    processors = {GPU: processor, CPU: processor}
    return EmulatedDevice(Machine("two", GPU, processors, flash, bandwidth, 1e9, 0.0, sync=sync))


def pass_seconds(machine: EmulatedDevice, split: Split | None, rows: int = 5) -> float:
    session = Session(Engine("target", machine, MODEL_COST, NoNetwork(), RESIDENT))
    session.start(Prefix.of((1,)))
    divide(session, split)
    root = Prefix.of((1,))
    start = machine.now
    machine.play(session.forward([root.then(token) for token in range(rows)]))
    return machine.now - start


@given(share=st.floats(0, 1), keys=st.floats(0, 1), left=st.integers(0, 9), context=st.integers(0, 500))
def test_columns_do_all_the_work_once(share: float, keys: float, left: int, context: int) -> None:
    look = AttentionExtent(4, context, [1, 2, 2, 3])
    split = Split(share, keys=keys, dense_keys=left)
    pieces = [piece for stage in stages(MODEL_COST, split, look) for piece in stage]
    linears = sum(p.flops for p in pieces if p.kind == "layer")
    assert linears == pytest.approx(2.0 * 4 * SHAPE.layer_weights)
    weights = sum(p.bytes for p in pieces if p.kind == "layer")
    assert weights == pytest.approx(MODEL_COST.layer_bytes)
    dense = sum(p.flops for p in pieces if p.kind != "layer") - 4.0 * 64 * _tree_pairs(look, left)
    assert dense == pytest.approx(SHAPE.attention_flops(4, context))


def test_both_halves_of_an_attention_move_what_they_merge() -> None:
    """fp16 keys and values of 10 cached and 4 own tokens; of each half an fp32 result, maximum and sum."""
    look = AttentionExtent(4, 10, [1, 2, 2, 3])
    moved = {piece.kind: 0.0 for piece in attention(MODEL_COST, Split(0.5, keys=0.25), look)}
    for piece in attention(MODEL_COST, Split(0.5, keys=0.25), look):
        moved[piece.kind] += piece.bytes
    merged = 4 * 4 * (16 + 2) * 4
    assert moved == {"attention": 2 * 10 * 2 * 16 * 2 + merged, "sparse": 2 * 4 * 2 * 16 * 2 + merged}


def _tree_pairs(look: AttentionExtent, left: int) -> int:
    return look.rows * min(left, look.rows) + sum(max(0, seen - left) for seen in look.visible_keys)


def test_megatron_attends_densely_and_adds_up_twice() -> None:
    look = AttentionExtent(3, 10, [1, 2, 2])
    layer = list(stages(MODEL_COST, Split(0.25, "megatron"), look))
    assert [len(stage) for stage in layer] == [4, 1, 2, 1]
    assert sum(p.flops for stage in layer for p in stage) == pytest.approx(
        2.0 * 3 * SHAPE.layer_weights + SHAPE.attention_flops(3, 13)
    )
    assert layer[1][0].bytes == layer[3][0].bytes == 3 * 3 * 64 * 2


def test_synchronization_is_paid_before_every_stage() -> None:
    free, paid = (pass_seconds(device(sync), Split(0.5)) for sync in (0.0, 1e-3))
    assert paid - free == pytest.approx(1e-3 * (5 * SHAPE.layers + 1))


def test_contention_stretches_both_halves_and_no_byte_is_lost() -> None:
    machine = device(bandwidth=1.2e8)  # two processors would like 2e8
    slow = pass_seconds(machine, Split(0.5), rows=1)
    assert slow > 1.3 * pass_seconds(device(), Split(0.5), rows=1)
    moved = sum(span.bytes for span in machine.trace.spans if span.kind == "layer")
    assert moved == pytest.approx(MODEL_COST.layer_bytes * SHAPE.layers)
    rates = sum(span.bytes for span in machine.trace.spans) / slow
    assert rates <= 1.2e8 * (1 + 1e-9)
