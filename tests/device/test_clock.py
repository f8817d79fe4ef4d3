"""Exact logs of what happens when, on the virtual clock, and of what happens in which order on both."""

import pytest

from repro.device.clock import Cancelled, Deadlock, Future, Task, VirtualClock, WallClock
from repro.device.emulated import Device, EmulatedDevice
from repro.device.op import Op
from tiny import DEVICES, play, toy


def sleep(clock: VirtualClock, seconds: float) -> Future[None]:
    passed: Future[None] = Future()
    clock.after(seconds, lambda: passed.set(None))
    return passed


@pytest.fixture(params=DEVICES)
def device(request):
    made = DEVICES[request.param]()
    yield made
    made.close()


def test_two_coroutines_go_on_when_their_times_come() -> None:
    clock, log = VirtualClock(), []

    async def tick(name: str, seconds: float, times: int) -> str:
        for _ in range(times):
            await sleep(clock, seconds)
            log.append((name, clock.now))
        return name

    async def main() -> list[str]:
        tasks = [Task(tick("fast", 0.5, 4)), Task(tick("slow", 0.75, 3))]
        return [await task for task in tasks]

    assert play(clock, main()) == ["fast", "slow"]
    assert log == [
        ("fast", 0.5),
        ("slow", 0.75),
        ("fast", 1.0),
        ("slow", 1.5),  # both are due now; slow booked its event first, at 0.75
        ("fast", 1.5),
        ("fast", 2.0),
        ("slow", 2.25),
    ]


def test_events_at_one_moment_come_as_they_were_booked() -> None:
    clock, log = VirtualClock(), []
    for name in "cab":
        clock.after(1.0, lambda name=name: log.append(name))
    clock.after(0.5, lambda: clock.after(0.5, lambda: log.append("late")))
    play(clock, _until(sleep(clock, 1.0)))
    assert log == ["c", "a", "b"]
    play(clock, _until(sleep(clock, 0.0)))
    assert log == ["c", "a", "b", "late"]


async def _until(future: Future) -> None:
    await future


def test_a_task_runs_at_once_until_it_first_waits(device: Device) -> None:
    log = []

    async def child() -> None:
        log.append("child starts")
        await device.run(Op("cpu", "k", "op"))
        log.append("child ends")

    async def main() -> None:
        task = device.spawn(child())
        log.append("main goes on")
        await task

    device.play(main())
    assert log == ["child starts", "main goes on", "child ends"]


@pytest.mark.parametrize("clock", [VirtualClock, WallClock])
def test_waiting_for_nothing_is_a_deadlock(clock: type) -> None:
    with pytest.raises(Deadlock, match="nobody submitted"):
        play(clock(), _until(Future()))


def test_a_cancelled_task_stops_where_it_waits_and_its_op_still_runs(device: Device) -> None:
    log = []

    async def child() -> None:
        try:
            await device.run(Op("cpu", "k", "first", compute=lambda: log.append("computed")))
            log.append("never")
        finally:
            log.append("cleaned up")

    async def main() -> None:
        await device.run(Op("cpu", "k", "before"))
        task = device.spawn(child())
        task.cancel()
        task.cancel()  # a second time changes nothing
        log.append(type(task.error).__name__)
        await device.run(Op("cpu", "k", "after"))
        with pytest.raises(Cancelled):
            await task

    device.play(main())
    assert sorted(log) == ["Cancelled", "cleaned up", "computed"]
    assert log.index("cleaned up") < log.index("Cancelled")
    assert [span.name for span in device.trace] == ["before", "first", "after"]


def test_play_stops_what_is_left_over(device: Device) -> None:
    log = []

    async def forever() -> None:
        while True:
            await device.run(Op("cpu", "k", "beside"))
            log.append("beside")

    async def main() -> str:
        device.spawn(forever())
        for _ in range(3):
            await device.run(Op("cpu", "k", "own"))
        return "over"

    assert device.play(main()) == "over"
    held = len(log)
    assert held > 0
    device.play(_until(device.run(Op("cpu", "k", "next"))))
    assert len(log) == held


def test_the_error_of_an_op_reaches_who_awaits_it_and_the_device_goes_on(device: Device) -> None:
    async def main() -> str:
        for on in ("cpu", "flash"):
            with pytest.raises(ZeroDivisionError):
                await device.run(Op(on, "k", "wrong", compute=lambda: 1 // 0))
        return await device.run(Op("cpu", "k", "right", compute=lambda: "went on"))

    assert device.play(main()) == "went on"
    assert [span.name for span in device.trace] == ["right"]


async def _fails(device: Device) -> None:
    await device.run(Op("cpu", "k", "op"))
    raise LookupError("in the background")


def test_the_error_of_a_spawned_task_that_nobody_awaits_comes_out_of_play(device: Device) -> None:
    async def main() -> None:
        device.spawn(_fails(device))
        await device.run(Op("flash", "load", "read", bytes=1e6))
        await device.run(Op("cpu", "k", "late"))

    with pytest.raises(LookupError, match="in the background"):
        device.play(main())


def test_an_op_computes_when_its_virtual_start_comes() -> None:
    device, log = EmulatedDevice(toy()), []

    async def main() -> None:
        ops = [Op("npu", "k", name, flops=1e6, compute=lambda: log.append(device.now)) for name in "ab"]
        for done in [device.run(op) for op in ops]:
            await done
        log.append(device.now)

    device.play(main())
    assert log == pytest.approx([0.0, 1.01e-3, 2.02e-3], rel=1e-12)


def test_a_deadlock_that_a_failed_task_caused_names_that_failure(device: Device) -> None:
    promised: Future[None] = Future()

    async def promising() -> None:
        await _fails(device)
        promised.set(None)

    async def main() -> None:
        device.spawn(promising())
        await promised

    with pytest.raises(LookupError) as raised:
        device.play(main())
    assert isinstance(raised.value.__context__, Deadlock)
