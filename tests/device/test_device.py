"""The emulated device, held to arithmetic that is done a second time here, over random mixes of ops."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from concurrency import most_at_once
from repro.core.errors import InputError
from repro.device.cost import Machine
from repro.device.emulated import Device, EmulatedDevice
from repro.device.memory import Memory
from repro.device.op import Op
from tiny import processor, toy

RESOURCES = ("cpu", "gpu", "npu", "flash")
Lane = list[Op]

ops = st.builds(
    lambda on, kind, flops, moved, priority: Op(
        on, kind, f"{kind} on {on}", flops=flops, bytes=moved, priority=priority
    ),
    on=st.sampled_from(RESOURCES),
    kind=st.sampled_from(("layer", "head")),
    flops=st.sampled_from((0.0, 1e3, 5e5, 3e6)),
    moved=st.sampled_from((0.0, 1e3, 4e5, 2e6)),
    priority=st.integers(0, 2),
)
mixes = st.lists(st.lists(ops, min_size=1, max_size=5), min_size=1, max_size=7)
searching = settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def played(lanes: list[Lane], machine: Machine | None = None) -> EmulatedDevice:
    """Each lane's ops one after the other, all lanes side by side."""
    device = EmulatedDevice(machine or toy())
    _play(device, lanes)
    return device


def _play(device: Device, lanes: list[Lane]) -> None:
    async def walk(lane: Lane) -> None:
        for op in lane:
            await device.run(op)

    async def main() -> None:
        for task in [device.spawn(walk(lane)) for lane in lanes]:
            await task

    device.play(main())


def check_slots(device: EmulatedDevice) -> None:
    for on in sorted(device.resources):
        spans = [span for span in device.trace if span.on == on]
        assert most_at_once(spans) <= device.machine.slots(on), f"{on} works on more than its slots allow"


def water_level(capacity: float, demands: list[float]) -> float:
    """The rate above which nobody gets anything, found by halving: shares done another way."""
    low, high = 0.0, max(demands, default=0.0)
    if sum(demands) <= capacity:
        return high
    for _ in range(200):
        middle = (low + high) / 2
        if sum(min(middle, d) for d in demands) > capacity:
            high = middle
        else:
            low = middle
    return low


def check_bytes(device: EmulatedDevice) -> None:
    """Integrate every op's rate over its own span, from the spans alone: it must have moved its bytes."""
    machine = device.machine
    working = []
    for span in device.trace:
        demand = machine.demand(Op(span.on, span.kind, span.name, span.rows, span.flops, span.bytes))
        working.append((span.start + demand.launch, span.end, demand.bandwidth, span.bytes))
    moments = sorted({moment for start, end, *_ in working for moment in (start, end)})
    moved = [0.0] * len(working)
    for left, right in pairwise(moments):
        now = [i for i, (start, end, *_) in enumerate(working) if start <= left and right <= end]
        level = water_level(machine.dram_bandwidth, [working[i][2] for i in now])
        for i in now:
            moved[i] += min(level, working[i][2]) * (right - left)
    assert moved == pytest.approx([bytes_ for *_, bytes_ in working], rel=1e-6, abs=1e-3)


def check_windows(device: EmulatedDevice) -> None:
    """What begins and ends within a window has moved within it, and DRAM allows no more than its rate."""
    spans = device.trace.spans
    for left in {s.start for s in spans}:
        for right in {s.end for s in spans if s.end > left}:
            moved = sum(s.bytes for s in spans if left <= s.start and s.end <= right)
            assert moved <= device.machine.dram_bandwidth * (right - left) * (1 + 1e-9) + 1e-6


def check_lone_ops(device: EmulatedDevice) -> None:
    """An op that nothing overlaps takes its launch and the longer of computing and moving."""
    for span in device.trace:
        others = [s for s in device.trace if s is not span and s.end > span.start and s.start < span.end]
        if others:
            continue
        demand = device.machine.demand(Op(span.on, span.kind, "", span.rows, span.flops, span.bytes))
        throttled = max(1.0, demand.bandwidth / device.machine.dram_bandwidth)
        assert span.seconds == pytest.approx(demand.launch + demand.work * throttled, rel=1e-9, abs=1e-12)


def check_joules(device: EmulatedDevice) -> None:
    watts = {name: p.watts for name, p in device.machine.processors.items()} | {"flash": 1.0}
    active = sum(watts[s.on] * s.seconds for s in device.trace)
    end = device.now
    total = device.trace.joules(0.0, end)
    assert total == pytest.approx(active + 0.5 * end, rel=1e-9)
    cut = end / 3
    parts = [device.trace.joules(a, b) for a, b in ((0.0, cut), (cut, end))]
    assert sum(parts) == pytest.approx(total, rel=1e-9)


CHECKS = (check_slots, check_bytes, check_windows, check_lone_ops, check_joules)


@searching
@given(mixes)
def test_any_mix_of_ops_obeys_the_machine(lanes: list[Lane]) -> None:
    device = played(lanes)
    assert len(device.trace.spans) == sum(map(len, lanes))
    for check in CHECKS:
        check(device)


CROWD = [[Op(on, "layer", f"{on} {i}", flops=1e6, bytes=2e6)] for i in range(4) for on in RESOURCES]


def test_the_crowd_obeys_the_machine() -> None:
    device = played(CROWD)
    for check in CHECKS:
        check(device)
    assert most_at_once(device.trace) == 5  # one on each resource, two on the CPU: the machine is full


def test_the_last_of_two_readers_speeds_up_when_the_first_is_done() -> None:
    """1.5 GB/s for a CPU that takes 1 and a GPU that takes 2: half each, then all that it takes."""
    machine = toy(processors={"cpu": processor(launch=0.0), "gpu": processor(launch=0.0, bandwidth=2e9)})
    lanes = [[Op("cpu", "k", "a", bytes=1.5e6)], [Op("gpu", "k", "b", bytes=3e6)]]
    spans = {span.name: span for span in played(lanes, machine).trace}
    # 0.75 GB/s each for 2 ms; then the GPU's other 1.5 MB go at 1.5 GB/s.
    assert spans["a"].end == pytest.approx(2e-3, rel=1e-9)
    assert spans["b"].end == pytest.approx(3e-3, rel=1e-9)


def test_an_op_that_moves_nothing_is_not_slowed() -> None:
    lanes = [[Op("npu", "k", "pure", flops=1e6)], *CROWD]
    spans = {span.name: span for span in played(lanes).trace}
    assert spans["pure"].seconds == pytest.approx(1.01e-3, rel=1e-9)


def test_a_resource_serves_the_lowest_priority_first_then_the_first_come() -> None:
    asked = [("first", 3), ("late", 2), ("b", 1), ("c", 1), ("urgent", 0)]
    device = played([[Op("npu", "k", name, priority=p)] for name, p in asked])
    assert [span.name for span in device.trace] == ["first", "urgent", "b", "c", "late"]


def test_a_resource_that_is_absent_is_served_by_the_fastest_and_noted() -> None:
    machine = toy(processors={"cpu": processor(), "gpu": processor(peak={"fp32": 3e9, "int8": 2e9})})
    device = EmulatedDevice(machine)
    assert device.resource("cpu") == "cpu"
    assert device.substituted == {}
    _play(device, [[Op("npu", "layer", "int", precision="int8"), Op("cpu", "layer", "own")]])
    assert [(s.name, s.on) for s in device.trace] == [("int", "cpu"), ("own", "cpu")]
    assert device.substituted == {"npu": "cpu"}
    assert device.resource("npu", "fp32") == "gpu"


STATIC = {"cpu": processor(), "npu": processor(graph_seconds=0.5, shapes=(8, 32))}


def test_a_static_graph_is_built_once_for_each_of_its_shapes() -> None:
    device = EmulatedDevice(toy(processors=STATIC))
    asked = [("a", 1), ("a", 8), ("a", 9), ("b", 3), ("a", 30), ("b", 8)]
    _play(device, [[Op("npu", "layer", f"{g} {rows}", rows=rows, graph=g) for g, rows in asked]])
    built = [(s.name, s.rows) for s in device.trace if s.kind == "build"]
    assert built == [("build a", 8), ("build a", 32), ("build b", 8)]
    assert all(s.seconds == 0.5 for s in device.trace if s.kind == "build")
    assert [s.name for s in device.trace][:2] == ["build a", "a 1"]
    check_slots(device)


def test_no_op_overtakes_the_build_of_its_graph() -> None:
    """Neither a free slot nor a higher priority lets an op begin before its graph is there."""
    roomy = processor(graph_seconds=0.5, shapes=(8,), slots=2)
    device = EmulatedDevice(toy(processors={"cpu": processor(), "npu": roomy}))
    ops = [Op("npu", "layer", f"{p}", rows=8, flops=1.0, graph="g", priority=p) for p in (1, 0)]
    for op in ops:
        device.run(op)

    async def wait() -> None:
        await device.run(ops[0])

    device.play(wait())
    (build,) = [s for s in device.trace if s.kind == "build"]
    assert all(s.start >= build.end for s in device.trace if s.kind == "layer")
    assert len(device.trace.spans) == 4


def test_graphs_cost_nothing_where_shapes_are_free() -> None:
    device = EmulatedDevice(toy(processors=STATIC))
    _play(device, [[Op("cpu", "layer", "a", graph="a"), Op("npu", "layer", "b")]])
    assert [s.kind for s in device.trace] == ["layer", "layer"]


def test_an_op_without_a_rate_fails_where_it_is_awaited() -> None:
    with pytest.raises(InputError, match="no rate for precision 'fp8'"):
        played([[Op("cpu", "k", "a", precision="fp8")]])


def test_memory_says_who_holds_what() -> None:
    memory = Memory(10e9, "the phone")
    memory.reserve(6e9, "target weights")
    memory.reserve(3e9, "a window")
    assert (memory.in_use, memory.free) == (9e9, 1e9)
    with pytest.raises(InputError) as raised:
        memory.reserve(2e9, "draft weights")
    assert str(raised.value) == (
        "draft weights needs 2.00 GB, but of the phone's budget of 10.00 GB only 1.00 GB are free "
        "(held: target weights 6.00 GB, a window 3.00 GB)"
    )
    memory.release("a window")
    assert (memory.in_use, memory.peak) == (6e9, 9e9)
    memory.release("target weights")
    assert (memory.in_use, memory.peak) == (0.0, 9e9)
    memory.reserve(1e9, "less")
    assert (memory.in_use, memory.peak) == (1e9, 9e9), "the most that was held, and not the last"
    memory.release("less")
    with pytest.raises(InputError, match="held: nothing"):
        memory.reserve(11e9, "everything")
