"""Measuring a machine: the fit against invented machines, the pieces against invented disks and counters, and
the command itself."""

import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml

from repro.device import measure
from repro.device.device_file import facts, machine
from repro.device.direct_io import DirectFile
from repro.device.local import LocalDevice, LocalMachine
from repro.device.op import Op
from repro.models.transformer.gemm_rates import Effort, Measured, Rates, fastest, kernels, measure_products
from repro.records import build_cache
from scripts import calibrate

WEIGHTS = 8192 * 2048
PEAKS = {"fp32": (100e9, "float32"), "fp16": (400e9, "bfloat16")}
BITS = {"fp32": 32, "fp16": 16}
STAIRS = ((1, 0.1), (4, 0.1), (16, 0.35), (64, 0.8), (256, 1.0))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return calibrate


# The fit


def invented(efficiency: Callable[[str, int], float], bandwidth: float = 18e9) -> list[Measured]:
    """Times of a machine that obeys the cost model, with an efficiency by arithmetic and rows."""
    found = []
    for (arithmetic, (peak, kernel)), (rows, _) in product(PEAKS.items(), STAIRS):
        flops, size = 2.0 * rows * WEIGHTS, WEIGHTS * BITS[arithmetic] / 8
        seconds = max(flops / (peak * efficiency(arithmetic, rows)), size / bandwidth)
        found.append(Measured(kernel, arithmetic, rows, seconds, flops, size))
    return found


def test_the_fit_finds_the_machine_that_was_measured() -> None:
    measured = invented(lambda _, rows: dict(STAIRS)[rows])
    rates = Rates.of(measured)
    assert rates.bandwidth == pytest.approx(18e9)
    assert rates.peaks == PEAKS
    # One row is bound by memory in both types, so that only a bound of its efficiency is known.
    (_, one), *others = rates.efficiency
    assert 0.08 < one <= 0.1
    assert others == [(rows, pytest.approx(share, rel=0.01)) for rows, share in STAIRS[1:]]
    assert rates.worst(measured) == pytest.approx(1.0, abs=0.01)


def test_no_wider_pass_is_cheaper_than_a_narrower_one() -> None:
    # Somebody else's work made 16 rows slower than 64.
    rates = Rates.of(invented(lambda _, rows: 0.05 if rows == 16 else 1.0))
    cost = [rows / share for rows, share in rates.efficiency]
    assert cost == sorted(cost)
    assert dict(rates.efficiency)[16] == pytest.approx(0.25, rel=0.01)


def test_one_curve_for_kernels_that_differ_says_how_wrong_it_is() -> None:
    measured = invented(lambda kind, rows: (0.9 if kind == "fp16" else 0.225) if rows == 64 else 1.0)
    rates = Rates.of(measured)
    assert dict(rates.efficiency)[64] == pytest.approx(0.45, rel=0.02)
    assert rates.worst(measured) == pytest.approx(2.0, rel=0.02)


def test_of_one_arithmetic_the_fastest_kernel_counts_at_each_row_count() -> None:
    def timed(kernel: str, rows: int, seconds: float) -> Measured:
        return Measured(kernel, "int8", rows, seconds, 2.0 * rows * WEIGHTS, WEIGHTS)

    found = fastest([timed("w4", 1, 1.0), timed("w8", 1, 2.0), timed("w4", 64, 9.0), timed("w8", 64, 3.0)])
    assert [(m.kernel, m.rows) for m in found] == [("w4", 1), ("w8", 64)]


# The pieces


def test_every_kernel_multiplies() -> None:
    effort = Effort(0.0, (1, 17), 128, 64, 128 * 64)
    said: list[str] = []
    found = list(measure_products(torch.device("cpu"), effort, said.append))
    assert all(m.seconds > 0 and m.flops == 2 * m.rows * 128 * 64 for m in found)
    missing = [line for line in said if "not on this machine" in line]
    named = {m.kernel for m in found} | {line.split()[0] for line in missing}
    assert len(named) == len({k.name for k in kernels(torch.device("cpu"))}) == 6
    assert {("float32", 1), ("float32", 17), ("int8 x int8", 17)} <= {(m.kernel, m.rows) for m in found}
    assert ("int8 x int8", 1) not in {(m.kernel, m.rows) for m in found}
    assert {m.bytes for m in found if m.kernel == "int4 weights"} <= {128 * 64 / 2}


def test_slow_calls_do_not_raise_the_time_of_a_call() -> None:
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        # Every second call meets somebody else's work.
        measure.WallClock().wait_until(0.002 + 0.02 * (len(calls) % 2))

    assert measure.seconds_each(work, 0.0, least=8) == pytest.approx(0.002, abs=0.002)
    assert len(calls) == 9


def test_a_scratch_file_is_read_in_requests_and_goes_away(tmp_path: Path, monkeypatch) -> None:
    asked: list[int] = []
    read = DirectFile.read_into

    def listening(self, buffer: memoryview, offset: int, request: int):
        for piece in read(self, buffer, offset, request):
            asked.append(piece.stop - piece.start)
            yield piece

    monkeypatch.setattr(DirectFile, "read_into", listening)
    with measure.scratch_file(tmp_path, 2 << 20) as source:
        assert source.path.stat().st_size == 2 << 20
        assert measure.read_rate(source, 2 << 20, 64 << 10, 0.02) > 0
    assert set(asked) == {64 << 10}
    assert list(tmp_path.iterdir()) == []


def test_launching_is_timed_on_the_device_itself() -> None:
    device = LocalDevice(LocalMachine("here", frozenset({"cpu", "flash"}), 0.0))
    assert 0 < measure.launch_seconds(device, "cpu", ops=20, rounds=3) < 0.01
    assert len(device.trace.spans) == 60


def test_power_is_read_from_counters_that_start_again(tmp_path: Path) -> None:
    package = tmp_path / "intel-rapl:0"
    package.mkdir()
    (package / "max_energy_range_uj").write_text("999999\n")
    (package / "energy_uj").write_text("900000\n")

    def work() -> None:
        measure.WallClock().wait_until(0.05)
        (package / "energy_uj").write_text("400000\n")

    # 0.5 J in a little over 0.05 s, over the end of the counter.
    assert measure.watts(0.01, work, tmp_path) == pytest.approx(10.0, rel=0.2)
    assert measure.watts(0.01, work, tmp_path / "nowhere") is None


# The command


def test_a_quick_calibration_is_a_device(script: ModuleType, tmp_path: Path, capsys) -> None:
    out = tmp_path / "phone.yaml"
    script.main(["--quick", "--out", str(out), "--name", "My phone", "--scratch", str(tmp_path / "scratch")])
    text = out.read_text()
    assert text.startswith(script.MARK)
    assert "Quick figures" in text
    found = yaml.safe_load(text)
    device = machine(found)
    assert device.name == "My phone"
    assert set(device.processors["cpu"].peak) >= {"fp32", "int8"}
    op = Op("cpu", "layer", "a", rows=8, flops=1e9, bytes=1e6, precision="fp32")
    assert device.demand(op).work > 0
    assert device.demand(Op("flash", "load", "a", bytes=1e6, request=4096)).work > 0
    rates = [rate for _, rate in device.flash.bandwidth.points]
    assert rates == sorted(rates)
    measured = {fact.path for fact in facts(found) if fact.source == "measured"}
    assert {"processors.cpu.efficiency", "flash.bandwidth", "dram.bandwidth", "dram.capacity"} <= measured
    assert list((tmp_path / "scratch").iterdir()) == []
    # Measuring again replaces it.
    assert script.free_place(out) == out
    assert f"device={out.stem}" in capsys.readouterr().out


def fail(script: ModuleType, *given: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        script.main(["--quick", *given])
    return str(stopped.value)


def test_it_never_overwrites_another_file(script: ModuleType, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\n")
    assert "not written by this script" in fail(script, "--out", str(mine))
    assert mine.read_text() == "name: mine\n"
    assert "not written by this script" in fail(script, "--name", "OnePlus 12")
    assert "no folder" in fail(script, "--out", str(tmp_path / "nowhere" / "a.yaml"))


def test_a_gpu_that_is_not_there_is_said_at_once(script: ModuleType, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert "needs a GPU" in fail(script, "--device", "cuda", "--out", str(tmp_path / "a.yaml"))


def test_a_full_disk_is_said(script: ModuleType, tmp_path: Path, monkeypatch) -> None:
    usage = build_cache.shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(build_cache.shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(script.gemm_rates, "measure_products", None)
    assert "disk too full" in fail(script, "--out", str(tmp_path / "a.yaml"), "--scratch", str(tmp_path))
    assert not (tmp_path / "a.yaml").exists()


def test_a_busy_machine_is_noted_in_the_file(script: ModuleType, monkeypatch) -> None:
    monkeypatch.setattr(script.os, "getloadavg", lambda: (4.0, 0.0, 0.0))
    monkeypatch.setattr(script.os, "cpu_count", lambda: 8)
    assert script.foreign_load() == 4.0
    assert "4.0 cores busy" in script.render({"name": "x"}, False, 4.0)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert script.foreign_load() is None
