"""This machine as a device: what runs where, in which order, how long, and what happens when it fails."""

import re
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from concurrency import most_at_once
from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.device.local import LocalDevice, LocalMachine, Pace, local_device, local_machine
from repro.device.op import Op
from repro.models.runtime.cuda import cuda_stream

BOTH = frozenset({"cpu", "flash"})
GB = 1e9


def machine(**changes: object) -> LocalMachine:
    return LocalMachine(**{"name": "here", "resources": BOTH, "budget": GB, **changes})


@pytest.fixture
def device():
    made = LocalDevice(machine())
    yield made
    made.close()


def sleeping(seconds: float, value: object = None) -> Callable[[], object]:
    def work() -> object:
        time.sleep(seconds)
        return value

    return work


def names(device: LocalDevice, on: str) -> list[str]:
    return [span.name for span in device.trace if span.on == on]


def overlap(device: LocalDevice) -> float:
    """Seconds in which CPU and flash were busy at once."""
    flash = [s for s in device.trace if s.on == "flash"]
    return sum(
        max(0.0, min(s.end, f.end) - max(s.start, f.start))
        for f in flash
        for s in device.trace
        if s.on == "cpu"
    )


def test_values_come_back_and_spans_carry_the_op(device: LocalDevice) -> None:
    async def run() -> list[int]:
        op = Op("cpu", "layer", "a", rows=3, flops=7.0, bytes=11.0, compute=lambda: 1)
        return [await device.run(op), await device.run(Op("flash", "load", "b", compute=lambda: 2))]

    assert device.play(run()) == [1, 2]
    first, second = device.trace.spans
    assert first[:3] == ("cpu", "layer", "a")
    assert (first.rows, first.flops, first.bytes) == (3, 7.0, 11.0)
    assert 0 <= first.start <= first.end <= second.start <= second.end <= device.now


@pytest.mark.parametrize("on", ["cpu", "flash"])
def test_the_lowest_priority_goes_first_then_the_first_come(device: LocalDevice, on: str) -> None:
    async def run() -> None:
        # The first holds the worker while the others queue; the CPU is held by this coroutine.
        ops = [("first", -2), ("late", 1), ("b", 0), ("c", 0), ("urgent", -1)]
        for future in [device.run(Op(on, "k", name, priority=p, compute=sleeping(0.02))) for name, p in ops]:
            await future

    device.play(run())
    assert names(device, on) == ["first", "urgent", "b", "c", "late"]


def test_reading_overlaps_computing(device: LocalDevice) -> None:
    async def run() -> None:
        coming = device.run(Op("flash", "load", "read", compute=sleeping(0.1)))
        for i in range(5):
            await device.run(Op("cpu", "layer", str(i), compute=sleeping(0.02)))
        await coming

    device.play(run())
    assert len(names(device, "cpu")) == 5
    # Loose, because the test may share its cores; without overlap it is exactly zero.
    assert overlap(device) > 0.05


def test_completions_are_taken_between_cpu_ops(device: LocalDevice) -> None:
    order: list[str] = []

    async def reader() -> None:
        await device.run(Op("flash", "load", "read", compute=sleeping(0.01)))
        order.append("read")

    async def run() -> None:
        task = device.spawn(reader())
        futures = [device.run(Op("cpu", "layer", str(i), compute=sleeping(0.1))) for i in range(2)]
        for i, future in enumerate(futures):
            await future
            order.append(str(i))
        await task

    device.play(run())
    assert order == ["0", "read", "1"]


@pytest.mark.parametrize("workers", [1, 3])
def test_spans_never_overlap_beyond_the_slots(workers: int) -> None:
    device = LocalDevice(machine(workers=workers))

    async def run() -> None:
        for on in ("cpu", "flash"):
            ops = [Op(on, "k", str(i), compute=sleeping(0.01)) for i in range(9)]
            for future in [device.run(op) for op in ops]:
                await future

    device.play(run())
    device.close()
    assert most_at_once(s for s in device.trace if s.on == "cpu") == 1
    assert most_at_once(s for s in device.trace if s.on == "flash") == workers


def failing() -> None:
    raise OSError("the disk broke")


@pytest.mark.parametrize("on", ["cpu", "flash"])
def test_an_error_reaches_who_awaits_and_the_device_goes_on(device: LocalDevice, on: str) -> None:
    async def run() -> str:
        failed = device.run(Op(on, "k", "bad", compute=failing))
        after = device.run(Op(on, "k", "good", compute=lambda: "good"))
        with pytest.raises(OSError, match="the disk broke"):
            await failed
        return await after

    assert device.play(run()) == "good"
    assert names(device, on) == ["good"]


def test_a_resource_that_is_not_there_is_served_and_noted(device: LocalDevice) -> None:
    async def run() -> int:
        return await device.run(Op("npu", "layer", "a", compute=threading.get_ident))

    assert device.play(run()) == threading.get_ident()
    assert device.substituted == {"npu": "cpu"}
    assert names(device, "cpu") == ["a"]


def test_an_op_without_a_function_moves_nothing(device: LocalDevice) -> None:
    async def run() -> None:
        await device.run(Op("flash", "load", "a", bytes=1e12))

    device.play(run())
    assert [(s.name, s.bytes) for s in device.trace] == [("a", 0.0)]


# Pacing


def test_pace_holds_the_rate_and_makes_up_for_a_delay_but_not_for_a_pause() -> None:
    pace = Pace(rate=100.0, slack=0.5)
    assert pace.due(start=10.0, size=100) == 11.0
    pace.over(11.0, 11.0)
    # Back to back: at the rate. The disk delays this one by 0.2 s.
    assert pace.due(start=11.0, size=100) == 12.0
    pace.over(12.0, 12.25)
    assert pace.due(start=12.25, size=100) == 13.0
    pace.over(13.0, 13.0)
    # A pause is no credit, and a long delay counts only so far.
    assert pace.due(start=20.0, size=100) == 21.0
    pace.over(21.0, 29.0)
    assert pace.due(start=29.0, size=100) == 29.5
    # After a late read and a pause as long, nothing is left to make up for.
    pace.over(29.5, 29.75)
    assert pace.due(start=30.0, size=100) == 31.0
    # A second worker's read that begins meanwhile waits its turn.
    assert pace.due(start=30.5, size=100) == 32.0


@pytest.mark.parametrize("workers", [1, 2])
def test_paced_reads_take_their_bytes_over_the_pace(workers: int) -> None:
    device = LocalDevice(machine(pace=100e6, workers=workers))
    assert device.flash_pacing == "paced"

    async def run() -> None:
        reads = [Op("flash", "load", str(i), bytes=2e6, compute=lambda: None) for i in range(20)]
        for future in [device.run(op) for op in reads]:
            await future

    device.play(run())
    device.close()
    # 40 MB at 100 MB/s.
    assert 0.4 - 1e-3 <= device.trace.spans[-1].end - device.trace.spans[0].start < 0.6


# Energy


def test_unpaced_reads_are_raw(device: LocalDevice) -> None:
    assert device.flash_pacing == "raw"


def test_energy_is_watts_by_seconds_and_absent_without_watts(device: LocalDevice) -> None:
    known = LocalDevice(machine(idle_watts=2.0, watts={"cpu": 10.0}))

    async def run(on: LocalDevice) -> None:
        await on.run(Op("cpu", "layer", "a", compute=sleeping(0.01)))

    for each in (known, device):
        each.play(run(each))
    span = known.trace.spans[0]
    assert span.joules == pytest.approx(10.0 * span.seconds)
    assert known.trace.joules(0.0, 1.0) == pytest.approx(10.0 * span.seconds + 2.0)
    assert device.trace.joules(0.0, 1.0) is None


# A GPU that is not there


class FakeEvent:
    """A point in a queue that is reached at a moment of its own clock, which began at another time."""

    def __init__(self, moment: float) -> None:
        self.moment = moment

    def wait(self) -> None:
        time.sleep(max(0.0, self.moment - time.monotonic()))

    def seconds_since(self, earlier: "FakeEvent") -> float:
        assert time.monotonic() >= self.moment
        return self.moment - earlier.moment


class FakeStream:
    """Kernels are launched by `add`, take their seconds one after the other, and nobody waits."""

    def __init__(self) -> None:
        self.free = 0.0

    def add(self, seconds: float) -> int:
        self.free = max(self.free, time.monotonic()) + seconds
        return threading.get_ident()

    def record(self) -> FakeEvent:
        return FakeEvent(max(self.free, time.monotonic()))


def test_gpu_ops_are_launched_inline_and_timed_by_the_gpu() -> None:
    stream = FakeStream()
    device = LocalDevice(machine(resources=BOTH | {"gpu"}), stream)

    async def run() -> list[int]:
        queued = [device.run(Op("gpu", "layer", str(i), compute=lambda: stream.add(0.05))) for i in range(3)]
        await device.run(Op("cpu", "draft", "meanwhile", compute=sleeping(0.05)))
        return [await future for future in queued]

    assert device.play(run()) == [threading.get_ident()] * 3
    device.close()
    spans = [s for s in device.trace if s.on == "gpu"]
    # Loose where the host's own pauses count; what was queued follows without a gap.
    assert [s.seconds for s in spans] == pytest.approx([0.05] * 3, abs=0.03)
    assert [b.start - a.end for a, b in pairwise(spans)] == pytest.approx([0.0, 0.0], abs=0.03)
    cpu = next(s for s in device.trace if s.on == "cpu")
    assert spans[0].start - 0.03 < cpu.start < spans[-1].end
    assert device.resource("npu") == "gpu"


@pytest.mark.gpu
def test_a_real_gpu_computes_and_is_timed() -> None:
    import torch

    stream = cuda_stream()
    if stream is None:
        pytest.skip("no CUDA device")
    device = local_device(config("local_cuda"), stream)
    x = torch.rand(4096, 4096, device="cuda")

    async def run() -> float:
        return (await device.run(Op("gpu", "layer", "square", compute=lambda: x @ x)))[0, 0].item()

    assert device.play(run()) == pytest.approx((x[0] @ x[:, 0]).item(), rel=1e-3)
    device.close()
    (span,) = device.trace.spans
    assert 0 < span.seconds < device.now


# Device files


def config(name: str) -> dict:
    return yaml.safe_load((conf_dir() / "device" / f"{name}.yaml").read_text(encoding="utf-8"))


def test_local_cuda_needs_a_gpu() -> None:
    with pytest.raises(InputError, match=r"'Local CUDA' needs a GPU.*choose local_cpu"):
        local_device(config("local_cuda"))
    assert local_device(config("local_cuda"), FakeStream()).resources == {"cpu", "gpu", "flash"}


def with_value(path: str, value: object) -> dict:
    changed = config("local_cpu")
    *folders, last = path.split(".")
    inner = changed
    for folder in folders:
        inner = inner[folder]
    inner[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("dram.budget.value", 1e6, r"budget is 1000000\.0 GB, but this machine has"),
        ("dram.budget.unit", "gigs", r"dram\.budget: unit 'gigs' is none of GB"),
        ("dram", {}, r"lacks dram\.budget"),
        ("pace.value", 0, r"Local CPU: pace: 0 GB/s must be a number above 0"),
        ("flash.slots.value", 0, r"flash\.slots: 0 must be a whole number from 1"),
        ("processors", {"npu": {}}, r"processors are npu; choices: cpu, or cpu and gpu"),
    ],
)
def test_a_wrong_device_file_is_one_clear_error(path: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        local_machine(with_value(path, value))


def test_the_facts_of_this_machine_are_read_in_si() -> None:
    power = {"idle": {"value": 3, "unit": "W", "source": "measured"}}
    watts = {"watts": {"value": 9, "unit": "W", "source": "measured"}}
    found = local_machine(config("local_cpu") | {"power": power, "processors": {"cpu": watts}})
    assert (found.pace, found.workers, found.idle_watts, found.watts) == (1e9, 1, 3.0, {"cpu": 9.0})
    assert local_machine(with_value("pace", None)).pace is None


def test_devices_know_no_torch() -> None:
    core = Path(__file__).parents[2] / "src/repro/device"
    imported = re.compile(r"^ *(import|from) torch\b", re.MULTILINE)
    code = {
        path.name: path.read_text(encoding="utf-8").rpartition('"""\n\nfrom __future__')[2]
        for path in core.glob("*.py")
    }
    assert [name for name, text in code.items() if imported.search(text)] == []
    assert len(code) > 10
