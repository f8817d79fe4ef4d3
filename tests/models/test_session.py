"""What a pass bills, worked out by hand; how layers stream; which real layer computes for a billed one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from concurrency import most_at_once
from repro.core.errors import InputError
from repro.device.emulated import EmulatedDevice
from repro.device.trace import Span
from repro.models.costs.model_cost import ModelCost
from repro.models.forward.network import DecoderNetwork, NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT, STREAMED, Placement
from repro.models.runtime.session import Session
from repro.models.streaming.layer_streaming import LayerReader, layer_file
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree
from repro.models.transformer import weights
from tiny import MODEL_COST, decoder, here, model_cost_of, processor, toy
from tiny_families import write

# hidden 8, 4 heads and 2 key-value heads of 2, MLP of 16 with three matrices, 10 tokens, 4 layers, fp32
LAYER_WEIGHTS = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16
LAYER_BYTES = 4 * LAYER_WEIGHTS
TABLE_BYTES = 2 * 4 * 8 * 10


def session(
    placement: Placement,
    device: EmulatedDevice | None = None,
    model_cost: ModelCost = MODEL_COST,
    tokens: int = 0,
) -> Session:
    return Session(
        Engine(
            "target", device or EmulatedDevice(toy()), model_cost, NoNetwork(), placement, token_count=tokens
        )
    )


def chains(opened: Session, *lengths: int) -> list[Span]:
    """Passes over so many new tokens each; all spans."""

    async def run() -> None:
        text = Prefix.of([])
        for length in lengths:
            text = text.extend([0] * length)
            await opened.forward([text])

    opened.device.play(run())
    return opened.device.trace.spans


def model_costs(spans: Sequence[Span]) -> list[tuple[str, int, float, float]]:
    return [(s.name, s.rows, s.flops, s.bytes) for s in spans]


def test_a_resident_pass_to_the_last_byte() -> None:
    def layers(rows: int, context: int) -> tuple[str, int, float, float]:
        flops = 2 * rows * LAYER_WEIGHTS + 4 * rows * context * 4 * 2
        moved = LAYER_BYTES + 2 * (context + rows) * 2 * 2 * 4
        return "target layers 0-3", rows, 4 * flops, 4 * moved

    assert LAYER_WEIGHTS == 576
    assert model_costs(chains(session(RESIDENT), 5, 1)) == [
        ("target embed", 5, 0.0, 5 * 8 * 4),
        layers(5, 0),
        ("target head", 1, 2 * 8 * 10, 4 * 8 * 10),
        ("target embed", 1, 0.0, 8 * 4),
        layers(1, 5),
        ("target head", 1, 2 * 8 * 10, 4 * 8 * 10),
    ]


def test_an_engine_may_verify_on_another_processor_than_it_decodes_on() -> None:
    """Where the placement names none: passes over several rows, with their output projection."""
    for placement, several in ((Placement(), "npu"), (Placement(on="gpu"), "gpu")):
        device = EmulatedDevice(toy(verifies="npu"))
        opened, text = session(placement, device), Prefix.of([1, 2, 3])

        async def run(opened: Session = opened, text: Prefix = text) -> None:
            await opened.forward([text])
            await opened.forward([text.then(4)])

        device.play(run())
        ons = [[s.on for s in device.trace if s.kind == kind] for kind in ("embed", "layer", "head")]
        alone = placement.on or "cpu"
        assert ons == [[several, alone], [several, alone], [alone, alone]]


def test_small_runs_are_ops_of_their_own_and_cost_the_same() -> None:
    coarse, fine = (chains(session(Placement(run=run)), 3) for run in (0, 3))
    assert [s.name for s in fine if s.kind == "layer"] == ["target layers 0-2", "target layer 3"]
    assert sum(s.flops for s in fine) == sum(s.flops for s in coarse)
    assert sum(s.bytes for s in fine) == sum(s.bytes for s in coarse)


def loads(spans: Sequence[Span]) -> list[int]:
    return [int(s.name.split()[-1]) for s in spans if s.kind == "load"]


def in_hand(spans: Sequence[Span]) -> int:
    """The most layers that were being read, lay ready or computed at once."""
    begun = [s.start for s in spans if s.kind == "load"]
    over = [s.end for s in spans if s.kind == "layer" and s.name.startswith("target layer ")]
    edges = sorted(
        [(moment, 1) for moment in begun] + [(moment, -1) for moment in over], key=lambda e: (e[0], e[1])
    )
    level = most = 0
    for _, step in edges:
        level += step
        most = max(most, level)
    return most


@pytest.mark.parametrize("resident", [0.0, 0.5])
@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize("prefetch", [0, 1, 2, 3, 6])
def test_each_streamed_layer_is_read_once_a_pass_into_few_slots(
    prefetch: int, preload: bool, resident: float
) -> None:
    placement = Placement(resident=resident, prefetch=prefetch, preload=preload)
    slow = toy(processors={"cpu": processor(peak={"fp32": 1e7})})  # so that reading gets as far as it may
    opened = session(placement, EmulatedDevice(slow))
    spans = chains(opened, 3, 1, 1)
    streamed = list(range(int(4 * resident), 4))
    read = loads(spans)
    assert read[: 3 * len(streamed)] == 3 * streamed
    ahead = read[3 * len(streamed) :]
    assert ahead == (streamed * 2)[: len(ahead)]
    assert bool(ahead) <= preload
    assert all(s.bytes == LAYER_BYTES for s in spans if s.kind == "load")
    slots = min(prefetch + 1, len(streamed))
    assert in_hand(spans) == slots
    assert in_hand(chains(session(placement), 3, 1, 1)) <= slots
    assert opened.engine.resident_bytes == TABLE_BYTES + (4 - len(streamed) + slots) * LAYER_BYTES
    for layer, load in zip(
        [s for s in spans if s.kind == "layer" and "-" not in s.name],
        [s for s in spans if s.kind == "load"],
        strict=False,
    ):
        assert load.end <= layer.start


AHEAD = replace(STREAMED, prefetch=3, preload=True)


@pytest.mark.parametrize("placement", [STREAMED, AHEAD, replace(AHEAD, fill=None)])
def test_an_engine_with_serial_reads_adds_reading_and_computing(placement: Placement) -> None:
    """LEVER's Table 1: a streamed token takes its reads and its computing, whatever a method reads ahead."""
    device = EmulatedDevice(toy(serial_reads=True, read_ahead=1.0))
    opened = session(placement, device)
    spans = chains(opened, 2, 1)
    assert most_at_once(spans) == 1
    assert opened.engine.residency.slots == 1
    last = opened.passes[-1]
    assert last.end - last.start == pytest.approx(sum(s.seconds for s in spans if s.start >= last.start))


def test_reading_goes_on_between_passes_only_with_preload() -> None:
    def first_layer_waits(preload: bool) -> float:
        device = EmulatedDevice(toy())
        opened = session(Placement(resident=0.0, prefetch=1, preload=preload), device)
        chains(opened, 1)
        before = device.now

        device.play(opened.forward([Prefix.of([0, 0])]))
        layer = [s for s in device.trace if s.kind == "layer"][4]
        return layer.start - before

    read_seconds = LAYER_BYTES / 1e8
    assert first_layer_waits(preload=True) < read_seconds / 2
    assert first_layer_waits(preload=False) > read_seconds


def test_memory_is_reserved_by_role_and_refused_when_it_does_not_fit() -> None:
    need = TABLE_BYTES + 4 * LAYER_BYTES + 4 * 2 * 100 * 2 * 2 * 4
    device = EmulatedDevice(toy(dram_budget=need))
    session(RESIDENT, device, tokens=100).engine.reserve()
    assert device.memory.in_use == device.memory.peak == need
    with pytest.raises(InputError, match=r"target weights needs .* \(held: target weights .*100 tokens"):
        session(STREAMED, device, tokens=1).engine.reserve()
    streamed = EmulatedDevice(toy())
    session(STREAMED, streamed).engine.reserve()
    assert streamed.memory.in_use == TABLE_BYTES + 2 * LAYER_BYTES


def test_loading_reads_once_what_stays() -> None:
    opened = session(Placement(resident=0.5))
    opened.device.play(opened.engine.load())
    (load,) = opened.device.trace.spans
    assert (load.on, load.kind, load.bytes) == ("flash", "load", TABLE_BYTES + 2 * LAYER_BYTES)


@pytest.mark.parametrize(("share", "held"), [(0.0, 0), (0.24, 0), (0.25, 1), (0.3, 1), (0.99, 3), (1.0, 4)])
def test_a_share_of_the_layers_is_rounded_down(share: float, held: int) -> None:
    assert Placement(resident=share).resident_layers(4) == held
    assert Placement(resident=0.29).resident_layers(100) == 29  # as a float, 0.29 * 100 lies below 29


@pytest.mark.parametrize(
    ("dtype", "prefetch", "preload"),
    [*((dtype, 1, True) for dtype in weights.DTYPES), ("float32", 0, False), ("float32", 5, True)],
)
def test_layers_streamed_from_the_disk_say_what_resident_ones_say(
    dtype: str, prefetch: int, preload: bool, tmp_path: Path
) -> None:
    write("qwen-2.5", tmp_path / "checkpoint")
    folder, device = tmp_path / "checkpoint", here()
    file = layer_file(folder, dtype, tmp_path / "cache")
    reader = LayerReader(file, slot_count=prefetch + 1)
    model_cost = model_cost_of(decoder("qwen-2.5"))
    placement = Placement(resident=0.0, prefetch=prefetch, preload=preload)
    bare, whole = (weights.load(folder, dtype, is_packed=False, is_resident=held) for held in (False, True))
    streamed = Session(Engine("target", device, model_cost, DecoderNetwork(bare), placement, reader))
    resident = Session(Engine("target", device, model_cost, DecoderNetwork(whole), RESIDENT))

    async def passes(opened: Session) -> list[torch.Tensor]:
        text, out = Prefix.of([1, 2, 3]), []
        for _ in range(3):
            (row,) = await opened.forward([text])
            out.append(row.logits)
            text = text.then(row.choice)
        tree = TokenTree(text)
        for token in (4, 5, 6):
            tree.grow(0, token)
        out += [row.logits for row in await opened.forward(tree.prefixes)]
        return out

    expected = device.play(passes(resident))
    found = device.play(passes(streamed))
    assert len(found) == 7
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    device.close()
    streamed.engine.close()
    assert reader.bytes_read >= 4 * 4 * file.layer_bytes


def test_a_draft_yields_to_the_target_on_a_processor_that_both_want() -> None:
    device = EmulatedDevice(toy())
    target = Session(Engine("target", device, MODEL_COST, NoNetwork(), RESIDENT))
    draft = Session(Engine("draft", device, MODEL_COST, NoNetwork(), Placement(background=True)))
    hold = [device.spawn(session(RESIDENT, device).forward([Prefix.of([0] * 50)])) for _ in range(2)]

    async def both() -> None:
        tasks = [
            device.spawn(draft.forward([Prefix.of([1])])),
            device.spawn(target.forward([Prefix.of([1])])),
        ]
        for task in [*tasks, *hold]:
            await task

    seen = len(device.trace.spans)
    device.play(both())
    started = sorted(device.trace.spans[seen:], key=lambda s: s.start)
    names = [s.name for s in started if s.rows == 1 and s.kind == "embed"]
    assert names == ["target embed", "draft embed"]


@pytest.mark.parametrize(("short", "loads"), [(0, 0), (1, 4)])
def test_what_swaps_is_resident_if_it_fits_and_else_read_in_every_pass(short: int, loads: int) -> None:
    whole = TABLE_BYTES + 4 * LAYER_BYTES + 4 * 2 * 10 * 2 * 2 * 4
    device = EmulatedDevice(toy(dram_budget=whole - short))
    opened = session(Placement(policy="swap", prefetch=0), device, tokens=10)
    opened.engine.reserve()
    assert len([s for s in chains(opened, 1) if s.kind == "load"]) == loads


@pytest.mark.parametrize(("layers", "slots"), [(1, 1), (3, 3), (4, 4), (9, 4)])
def test_layers_are_read_ahead_as_far_as_the_memory_bound_goes(layers: int, slots: int) -> None:
    device = EmulatedDevice(toy(dram_budget=2 * (TABLE_BYTES + layers * LAYER_BYTES)))
    opened = session(Placement(resident=0.0, prefetch=1, preload=True, fill=0.5), device)
    assert opened.engine.residency.slots == slots
    opened.engine.reserve()
    chains(opened, 1, 1)
    assert in_hand(device.trace.spans) <= slots
