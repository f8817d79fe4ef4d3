"""STI from end to end: text, bytes and seconds of a tiny target in shards; plans against passes that ran."""

from __future__ import annotations

import pytest

from repro.core.errors import InputError
from repro.device.emulated import EmulatedDevice
from repro.device.trace import Span
from repro.methods.sti.shard_plan import Layers, Sharding, ShardPlan, plan, stored_bits
from repro.methods.sti.sharded_model import CONTEXT_LENGTH, pace
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import Placement
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.records.record import Record
from tiny import MODEL_COST, toy
from tiny_project import Project

STI = ("method=sti", "method.preload=0", "max_tokens=24", "format=computed", "engine=own")
LAYERS, LAYER_BYTES = 2, 4 * (4 * 64 * 64 + 3 * 64 * 96)
"""Of the tiny project's target, in fp32."""


def number(record: Record, name: str) -> float:
    value = record.values[name]
    assert isinstance(value, (int, float)), f"{name} is {value!r}"
    return float(value)


def test_with_time_for_the_whole_model_the_text_is_its_own(project: Project) -> None:
    record = project.record(*STI, "method.latency=1")
    assert record.values["shard_bits"] == 32
    assert record.values["exact_match"] == 1
    assert record.values["rouge_l_tokens"] == 100
    assert record.values["flash_bytes_per_token"] == LAYERS * LAYER_BYTES


def test_with_little_time_it_reads_less_and_says_something_else(project: Project) -> None:
    record = project.record(*STI, "method.latency=0.01", "method.widths=[2]")
    bits = stored_bits(2)
    assert number(record, "shard_bits") == pytest.approx(bits)
    assert number(record, "flash_bytes_per_token") == pytest.approx(LAYERS * LAYER_BYTES * bits / 32)
    assert number(record, "rouge_l_tokens") < 60
    assert number(record, "planned_time_per_token") > number(record, "latency_target")
    assert number(record, "time_per_token") == pytest.approx(
        number(record, "planned_time_per_token"), rel=0.02
    )


def test_more_time_brings_it_nearer_to_the_target(project: Project) -> None:
    records = [project.record(*STI, f"method.latency={share}") for share in (0.55, 0.7, 0.85, 1)]
    for name in ("shard_bits", "time_per_token", "flash_bytes_per_token"):
        found = [number(record, name) for record in records]
        assert found == sorted(found), name
    assert number(records[0], "rouge_l_tokens") < number(records[-1], "rouge_l_tokens")
    for record in records:
        assert number(record, "time_per_token") <= 1.01 * number(record, "latency_target")


def test_a_buffer_is_held_and_not_read_again(project: Project) -> None:
    without = project.record(*STI, "method.latency=1")
    buffered = project.record(*STI, "method.latency=1", "method.preload=0.5")
    assert buffered.values["flash_bytes_per_token"] == LAYER_BYTES
    assert buffered.values["shards_preloaded_bytes"] == LAYER_BYTES
    held = [record.provenance.memory["emulated_dram"] for record in (without, buffered)]
    assert held[1] - held[0] == LAYER_BYTES


def test_where_shards_cannot_be(project: Project) -> None:
    with pytest.raises(InputError, match="sti runs on an emulated device"):
        project.cell(*STI, "device=local_cpu")
    assert "float32 or bfloat16" in (project.cell(*STI, "target.dtype=int4").error or "")
    with pytest.raises(InputError, match="latency is 0"):
        project.cell(*STI, "method.latency=0")


def passed(placement: Placement, found: ShardPlan, device: EmulatedDevice) -> tuple[float, list[Span]]:
    """Seconds of a pass over one row after `CONTEXT` others, and the reads of it."""
    session = Session(Engine("target", device, MODEL_COST, NoNetwork(), placement, loads=found))
    text = Prefix.of([0] * CONTEXT_LENGTH)

    async def run() -> None:
        await session.forward([text])
        await session.forward([text.then(0)])

    device.play(run())
    last = session.passes[-1]
    return last.end - last.start, [s for s in device.trace.within(last.start, last.end, "flash")]


@pytest.mark.parametrize("latency", [0.1, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("preload", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("keeps", [True, False])
def test_a_pass_takes_what_was_planned(latency: float, preload: float, prefetch: int, keeps: bool) -> None:
    device = EmulatedDevice(toy(keeps_tables=keeps))
    asked = Sharding((2, 4), latency, preload)
    placement = Placement(resident=0.0, prefetch=prefetch, buffer=preload)
    ranks = [[0.1, 0.2], [0.4, 0.3], [0.0, 0.5], [0.6, 0.7]]
    layers = Layers(MODEL_COST.layer_bytes, MODEL_COST.stored.bits)
    found = plan(asked, ranks, layers, pace(MODEL_COST, device, placement))
    seconds, reads = passed(placement, found, device)
    assert seconds == pytest.approx(found.seconds, rel=1e-9)
    expected = [size for size in found.loads if size] + ([] if keeps else [MODEL_COST.head(1)[1]])
    assert [span.bytes for span in reads] == expected
