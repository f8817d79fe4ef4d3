"""Measured energy: invented counters of packages and of a GPU, and the phases between their readings."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from repro.device import local
from repro.device.clock import WallClock
from repro.device.energy import EnergyMeter, PackageCounter, open_meter
from repro.device.local import LocalDevice, LocalMachine
from repro.device.op import Op

RANGE = 999_999
"""Microjoules at which the invented counters start again."""


def write_zone(powercap: Path, zone: str, name: str, microjoules: int) -> Path:
    folder = powercap / zone
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in (("name", name), ("max_energy_range_uj", RANGE), ("energy_uj", microjoules)):
        (folder / file).write_text(f"{content}\n", encoding="utf-8")
    return folder


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages, the memory of one, and zones that are parts of a package or have the packages in them."""
    zones = {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1", "intel-rapl:0:2": "dram"}
    zones |= {"intel-rapl:0:0": "core", "intel-rapl:2": "psys", "intel-rapl-mmio:0": "package-0"}
    for zone, name in zones.items():
        write_zone(tmp_path, zone, name, 900_000)
    return tmp_path


def test_packages_and_their_memory_are_summed_and_start_again(powercap: Path) -> None:
    meter = open_meter(powercap=powercap)
    assert meter.joules() == 0.0
    for zone in powercap.iterdir():
        (zone / "energy_uj").write_text("400000\n", encoding="utf-8")
    assert meter.joules() == pytest.approx(3 * 0.5)  # over the end of each counter
    (powercap / "intel-rapl:1" / "energy_uj").write_text("300000\n", encoding="utf-8")
    assert meter.joules() == pytest.approx(3 * 0.5 + 0.9)  # and a second time
    assert meter.sentence.startswith("energy is measured by counters of package-0, dram, package-1; screen")


def test_counters_that_cannot_be_read_are_absent_energy_with_a_reason(powercap: Path) -> None:
    (powercap / "intel-rapl:1" / "energy_uj").unlink()
    for folder in (powercap, powercap / "nowhere"):
        meter = open_meter(powercap=folder)
        assert meter.joules() is None
        assert "no counter of its processor that this user may read" in meter.sentence


class InventedNvml:
    """NVIDIA's library with one GPU."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.millijoules: int | None = 5000

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != "GPU-1":
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        if self.millijoules is None:
            raise self.NVMLError("GPU is lost")
        return self.millijoules


def test_a_gpu_s_energy_is_that_of_its_board_and_of_the_packages(powercap: Path) -> None:
    nvml = InventedNvml()
    meter = open_meter("GPU-1", powercap, nvml)
    nvml.millijoules = 7500
    assert meter.joules() == pytest.approx(2.5)
    assert "the GPU's board" in meter.sentence
    nvml.millijoules = None
    assert meter.joules() is None
    assert "a counter failed (the GPU's board: GPU is lost)" in meter.sentence
    # Packages alone are not a GPU's energy.
    assert open_meter("GPU-2", powercap, nvml).sentence.endswith("cannot be read (Not Found)")


class MovedClock(WallClock):
    """A clock that stands until it is moved."""

    seconds = 0.0

    @property
    def now(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    moved = MovedClock()
    monkeypatch.setattr(local, "WallClock", lambda: moved)
    return moved


def play_phases(device: LocalDevice, clock: MovedClock, counter: SimpleNamespace) -> None:
    """A prefill of 2 s at 10 W and a decode of 3 s at 4 W, in ops of 1 s, with 1 s at 1 W between."""

    def work(watts: float) -> None:
        clock.seconds += 1.0
        counter.total += watts

    async def run(ops: int, watts: float) -> None:
        for _ in range(ops):
            await device.run(Op("cpu", "layer", "a", compute=lambda: work(watts)))

    for name, ops, watts in (("prefill", 2, 10.0), ("pause", 1, 1.0), ("decode", 3, 4.0)):
        with device.phase(name):
            device.play(run(ops, watts))


def test_each_phase_has_the_joules_that_were_counted_in_it(clock: MovedClock) -> None:
    counter = SimpleNamespace(label="invented", total=7.0)
    counter.joules = lambda: counter.total
    known = LocalMachine("here", frozenset({"cpu", "flash"}), 1e9, idle_watts=50.0)
    device = LocalDevice(known, meter=EnergyMeter([counter]))
    play_phases(device, clock, counter)
    joules = {p.name: device.trace.joules(p.start, p.end) for p in device.trace.phases}
    assert joules == pytest.approx({"prefill": 20.0, "pause": 1.0, "decode": 12.0})
    assert device.trace.joules(0.5, 2.5) == pytest.approx(15.5)  # on lines between the readings
    device.close()


def test_a_counter_that_fails_in_a_run_leaves_no_energy_instead_of_some(
    clock: MovedClock, powercap: Path
) -> None:
    counter = SimpleNamespace(label="invented", total=0.0)
    counter.joules = lambda: counter.total
    package = PackageCounter(powercap / "intel-rapl:0")
    device = LocalDevice(
        LocalMachine("here", frozenset({"cpu", "flash"}), 1e9), meter=EnergyMeter([counter, package])
    )
    play_phases(device, clock, counter)
    assert device.trace.joules(0.0, 6.0) == pytest.approx(33.0)
    (powercap / "intel-rapl:0" / "energy_uj").unlink()
    play_phases(device, clock, counter)
    assert device.trace.joules(0.0, 6.0) is None
    assert "a counter failed (package-0" in device.meter.sentence
    device.close()
