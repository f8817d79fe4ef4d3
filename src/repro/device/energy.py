"""This machine's energy counters: those of processor packages and their memory, and of a GPU's board.

Owns which counters there are, that they start again, and what they measure. Must not know what runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

POWERCAP = Path("/sys/class/powercap")
"""Where Linux has the counters of Intel's and AMD's processors (RAPL)."""
SUMMED_ZONES = ("package", "dram")
"""Zones that are summed: `core` and `uncore` are parts of a package, `psys` has the packages in it."""


class CounterFailed(Exception):
    """A counter that was read before cannot be read any more."""


class EnergyCounter(Protocol):
    """A counter of energy.

    Attributes:
        label: what it measures.
    """

    label: str

    def joules(self) -> float:
        """Joules since it was opened, or `CounterFailed`."""


class PackageCounter:
    """A zone of RAPL. It counts microjoules and starts again at its range, at most once between two reads."""

    def __init__(self, zone: Path) -> None:
        """Open a zone's folder; OSError if it cannot be read, as on most systems by others than root."""
        self.label = (zone / "name").read_text(encoding="utf-8").strip()
        self._file = zone / "energy_uj"
        self._wrap = int((zone / "max_energy_range_uj").read_text(encoding="utf-8")) + 1
        self._last, self._total = self._read(), 0

    def joules(self) -> float:
        """See `EnergyCounter`."""
        try:
            count = self._read()
        except (OSError, ValueError) as wrong:
            raise CounterFailed(f"{self.label}: {wrong}") from wrong
        self._total += (count - self._last) % self._wrap
        self._last = count
        return self._total / 1e6

    def _read(self) -> int:
        return int(self._file.read_text(encoding="utf-8"))


class BoardCounter:
    """A GPU's board, by NVIDIA's library."""

    label = "the GPU's board"

    def __init__(self, nvml: Any, uuid: str) -> None:
        """Open a GPU; the library's `NVMLError` if it has no such counter."""
        self._nvml = nvml
        nvml.nvmlInit()
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self._first = self._millijoules()

    def joules(self) -> float:
        """See `EnergyCounter`."""
        try:
            return (self._millijoules() - self._first) / 1e3
        except self._nvml.NVMLError as wrong:
            raise CounterFailed(f"{self.label}: {wrong}") from wrong

    def _millijoules(self) -> int:
        return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))


class EnergyMeter:
    """Counters that are read together.

    Attributes:
        counters: none if energy is not measured.
        absent: why it is not; "" if it is.
    """

    def __init__(self, counters: Sequence[EnergyCounter], absent: str = "") -> None:
        self.counters = tuple(counters)
        self.absent = absent

    def joules(self) -> float | None:
        """Joules since the counters were opened, summed; None if there are none, or one failed."""
        try:
            return sum(counter.joules() for counter in self.counters) if self.counters else None
        except CounterFailed as wrong:
            self.counters, self.absent = (), f"a counter failed ({wrong})"
            return None

    @property
    def sentence(self) -> str:
        """What the energies of a run are of."""
        if not self.counters:
            return f"energy is not measured: {self.absent}"
        parts = ", ".join(dict.fromkeys(counter.label for counter in self.counters))
        return f"energy is measured by counters of {parts}; screen, disk and power supply are not in it"


def open_meter(gpu_uuid: str = "", powercap: Path = POWERCAP, nvml: Any = None) -> EnergyMeter:
    """The counters of this machine's packages and, with a GPU, of its board, without which there are none.

    Args:
        gpu_uuid: of the GPU that computes; "" if the CPU does.
        powercap: the folder of RAPL's zones.
        nvml: NVIDIA's library; by default the module `pynvml`, if it is installed.
    """
    counters: list[EnergyCounter] = [*_package_counters(powercap)]
    if not gpu_uuid:
        why = "this system has no counter of its processor that this user may read"
        return EnergyMeter(counters, "" if counters else why)
    if nvml is None and find_spec("pynvml") is None:
        return EnergyMeter((), "the GPU's counter needs nvidia-ml-py, which is not installed")
    nvml = nvml or import_module("pynvml")
    try:
        return EnergyMeter([*counters, BoardCounter(nvml, gpu_uuid)])
    except nvml.NVMLError as wrong:
        return EnergyMeter((), f"the GPU's counter cannot be read ({wrong})")


def _package_counters(powercap: Path) -> list[PackageCounter]:
    """The zones that are summed; none if one of them cannot be read."""
    zones = sorted(zone for zone in powercap.glob("intel-rapl:*") if _name(zone).startswith(SUMMED_ZONES))
    try:
        return [PackageCounter(zone) for zone in zones]
    except OSError:
        return []


def _name(zone: Path) -> str:
    try:
        return (zone / "name").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
