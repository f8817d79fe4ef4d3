"""Measuring a machine: the pieces against invented disks, counters and kernels, and the command itself."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from repro.commands import VERBS
from repro.core.errors import InputError
from repro.device.device_file import facts, machine
from repro.device.energy import open_meter
from repro.device.engines.engine_file import with_engine
from repro.device.op import Op
from repro.device.probing import measure, quiet
from repro.models.calibration import calibrated_files as script
from repro.models.calibration import machine_files
from repro.models.calibration.machine_files import Effort, Timings
from repro.models.calibration.probe import PartTiming
from repro.records import build_cache

# The pieces


def test_slow_calls_do_not_raise_the_time_of_a_call() -> None:
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        # Every second call meets somebody else's work.
        measure.WallClock().wait_until(0.002 + 0.02 * (len(calls) % 2))

    assert measure.seconds_each(work, 0.0, least_runs=8) == pytest.approx(0.002, abs=0.002)
    assert len(calls) == 9


def test_power_is_read_from_counters_that_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, clock = tmp_path / "intel-rapl:0", SimpleNamespace(now=0.0)
    package.mkdir()
    monkeypatch.setattr(measure, "WallClock", lambda: clock)
    for file, content in (("name", "package-0"), ("max_energy_range_uj", 999_999), ("energy_uj", 900_000)):
        (package / file).write_text(f"{content}\n", encoding="utf-8")

    def work() -> None:
        clock.now += 0.05
        (package / "energy_uj").write_text("400000\n", encoding="utf-8")

    # 0.5 J in 0.05 s, over the end of the counter.
    assert measure.watts(0.01, work, open_meter(powercap=tmp_path)) == pytest.approx(10.0)
    assert measure.watts(0.01, work, open_meter(powercap=tmp_path / "nowhere")) is None


# The self-test


class Turns:
    """A clock on which calls take turns in how long they last, and `/proc/stat` counts what others do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stat: Path, lasts: list[float]) -> None:
        self.now, self.calls, self.lasts, self.stat = 0.0, 0, lasts, stat
        self.foreign = self.stolen = 0.0
        monkeypatch.setattr(quiet, "WallClock", lambda: self)
        monkeypatch.setattr(quiet.os, "times", lambda: (self.now, 0.0, 0.0, 0.0, 0.0))
        monkeypatch.setattr(quiet.os, "cpu_count", lambda: 2)
        self.tell()

    def __call__(self) -> None:
        self.now += self.lasts[self.calls % len(self.lasts)]
        self.calls += 1
        self.tell()

    def tell(self) -> None:
        ticks = 100 * self.now * (1 + self.foreign), 100 * 2 * self.now * self.stolen
        self.stat.write_text(f"cpu  {ticks[0]:.0f} 0 0 0 0 0 0 {ticks[1]:.0f} 0 0\n", encoding="utf-8")


def test_a_quiet_machine_passes_the_self_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = quiet.self_test(Turns(monkeypatch, tmp_path / "stat", [0.01]), 2.0, tmp_path / "stat")
    assert found.is_quiet
    assert (found.first, found.second) == pytest.approx((0.01, 0.01))
    assert (found.spread, found.foreign, found.stolen) == pytest.approx((0.0, 0.0, 0.0), abs=0.02)


@pytest.mark.parametrize(
    ("lasts", "foreign", "stolen", "said"),
    [
        ([0.010, 0.012], 0.0, 0.0, "10.00 and 12.00 ms (20% apart)"),
        ([0.01] * 8 + [0.02, 0.02], 0.0, 0.0, "slowest tenth 100% more"),
        ([0.01], 0.5, 0.0, "keep 0.5 cores busy"),
        ([0.01], 0.0, 0.1, "takes 10% of the time"),
    ],
)
def test_a_busy_machine_is_told_by_any_of_four_signs(
    lasts: list[float],
    foreign: float,
    stolen: float,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Turns(monkeypatch, tmp_path / "stat", [lasts[0], *lasts] if len(lasts) == 2 else lasts)
    if len(lasts) == 2:  # the warm-up takes the first
        kernel.lasts = [lasts[1], lasts[0]]
    kernel.foreign, kernel.stolen = foreign, stolen
    kernel.tell()
    found = quiet.self_test(kernel, 2.0, tmp_path / "stat")
    assert not found.is_quiet
    assert said in found.sentence


# The command

TINY = Effort((1, 4), (8,), ("small", "middle"), 1, 0.0, 0.0, 4 << 20, 0.01)


@pytest.fixture(scope="module")
def timings() -> list[PartTiming]:
    """What the probes would take at 50 GFLOP/s: their own times, so short, are mostly noise."""
    return [
        timing._replace(seconds=1e-5 + 2 * timing.rows * (timing.weights + timing.attention) / 50e9)
        for timing in machine_files.time_probes("cpu", TINY).parts
    ]


@pytest.fixture
def timed(timings: list[PartTiming], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command times the probes with little effort, once for all tests, and the quiet kernel briefly."""
    monkeypatch.setattr(script, "QUICK_EFFORT", TINY)
    monkeypatch.setattr(script, "self_test", lambda kernel: quiet.self_test(kernel, 0.0))
    monkeypatch.setattr(script, "time_probes", lambda on, effort: Timings(timings))
    monkeypatch.setattr(machine_files, "memory_bandwidth", lambda *_, **__: 20e9)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    for group in ("device", "engine"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    return tmp_path / "conf"


@pytest.mark.usefixtures("timed")
def test_a_calibration_is_a_device_and_two_engines(
    conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    VERBS["calibrate"](
        ["--quick", "--conf", str(conf), "--name", "My phone", "--scratch", str(tmp_path / "scratch")]
    )
    files = {
        path.relative_to(conf).as_posix(): path.read_text(encoding="utf-8") for path in conf.rglob("*.yaml")
    }
    assert set(files) == {"device/my_phone.yaml", "engine/my_phone.yaml", "engine/my_phone_streamed.yaml"}
    assert all(text.startswith(script.FIRST_LINE) and "Quick figures" in text for text in files.values())
    device = yaml.safe_load(files["device/my_phone.yaml"])
    for name in ("my_phone", "my_phone_streamed"):
        found = machine(with_engine(device, yaml.safe_load(files[f"engine/{name}.yaml"])))
        cpu = found.processors["cpu"]
        assert set(cpu.peak) == {"fp32", "fp16", "bf16", "int8"}
        asked = [
            Op("cpu", kind, "a", rows=4, flops=1e9, precision=p)
            for kind in ("layer", "head")
            for p in cpu.peak
        ]
        assert all(found.demand(op).work > 0 for op in asked)
        assert found.demand(Op("cpu", "embed", "a", precision="int8")).launch == 0.0
        assert found.demand(Op("cpu", "head", "a", precision="fp32")).launch > 0.0
    measured = {fact.path for fact in facts(device) if fact.source == "measured"}
    assert {"processors.cpu.peak.int8", "flash.bandwidth", "dram.bandwidth", "dram.capacity"} <= measured
    assert list((tmp_path / "scratch").iterdir()) == []
    script.free_paths(
        conf, "my_phone", ("device", "engine", "engine_streamed")
    )  # measuring again replaces them
    assert "device=my_phone engine=my_phone" in capsys.readouterr().out


def fail(*given: str) -> str:
    with pytest.raises(InputError) as stopped:
        VERBS["calibrate"](given)
    return str(stopped.value)


def test_it_never_overwrites_another_file(conf: Path, tmp_path: Path) -> None:
    mine = conf / "engine" / "mine.yaml"
    mine.write_text("name: mine\n", encoding="utf-8")
    assert "not written by `repro calibrate`" in fail("--quick", "--conf", str(conf), "--name", "mine")
    assert mine.read_text(encoding="utf-8") == "name: mine\n"
    assert "not written by `repro calibrate`" in fail("--quick", "--name", "OnePlus 12")
    assert "no folder" in fail("--quick", "--conf", str(tmp_path / "nowhere"))


def test_a_gpu_that_is_not_there_is_said_at_once(conf: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert "needs a GPU" in fail("--quick", "--device", "cuda", "--conf", str(conf))


@pytest.mark.usefixtures("timed")
def test_a_full_disk_is_said(conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = build_cache.shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(build_cache.shutil, "disk_usage", lambda _: usage)
    assert "disk too full" in fail("--quick", "--conf", str(conf), "--scratch", str(tmp_path))
    assert not list(conf.rglob("*.yaml"))


def test_a_busy_machine_is_refused_in_one_sentence_unless_busy_is_said(
    conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = quiet.Quiet(0.010, 0.014, 0.5, 1.3, 0.0)
    monkeypatch.setattr(script, "self_test", lambda _: busy)
    said = fail("--conf", str(conf))
    assert said.startswith("this machine is too busy to measure: the same kernel took 10.00 and 14.00 ms")
    assert "1.3 cores" in said
    assert "\n" not in said
    assert script.require_quiet(busy=True) is busy
    assert any("The machine was busy" in line for line in script.head("x", busy))
