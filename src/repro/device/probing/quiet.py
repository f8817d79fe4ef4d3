"""Is this machine quiet enough to measure? One function timed twice, and what others take meanwhile.

Must not know torch: the function is passed in.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from repro.device.clock import WallClock

MOST_APART = 0.05
"""Relative difference of the two medians above which a machine is not quiet."""
MOST_SPREAD = 0.25
"""Relative distance of the slowest tenth from the median above which it is not."""
MOST_FOREIGN = 0.15
"""Cores that others may keep busy."""
MOST_STOLEN = 0.05
"""Share of the time that the host of a virtual machine may take away."""

STAT_PATH = Path("/proc/stat")
TICKS_PER_SECOND = 100.0


@dataclass(frozen=True)
class Quiet:
    """Outcome of the self-test.

    Attributes:
        first: median seconds of the first arm.
        second: of the second arm; both run the same function, in turns.
        spread: 90th percentile of all calls over their median, less 1.
        foreign: cores that other programs kept busy; 0 where it cannot be read.
        stolen: share of the time that the host took away; 0 where it cannot be read.
    """

    first: float
    second: float
    spread: float
    foreign: float
    stolen: float

    @property
    def apart(self) -> float:
        """Relative difference of the two arms."""
        return abs(self.second / self.first - 1.0)

    @property
    def is_quiet(self) -> bool:
        """Whether a measurement can be trusted."""
        return (
            self.apart <= MOST_APART
            and self.spread <= MOST_SPREAD
            and self.foreign <= MOST_FOREIGN
            and self.stolen <= MOST_STOLEN
        )

    @property
    def sentence(self) -> str:
        """What was found."""
        return (
            f"the same kernel took {self.first * 1e3:.2f} and {self.second * 1e3:.2f} ms "
            f"({self.apart:.0%} apart), its slowest tenth {self.spread:.0%} more than the median, "
            f"other programs keep {self.foreign:.1f} cores busy and the host takes "
            f"{self.stolen:.0%} of the time"
        )


def self_test(kernel: Callable[[], object], seconds: float = 2.0, stat: Path = STAT_PATH) -> Quiet:
    """Time a kernel in two arms, in turns, for about `seconds`, and look at what others did meanwhile."""
    clock = WallClock()
    kernel()
    before, cpu_seconds = _busy(stat), sum(os.times()[:4])
    begin = clock.now
    times: list[float] = []
    while clock.now - begin < seconds or len(times) < 20:
        start = clock.now
        kernel()
        times.append(clock.now - start)
    elapsed = clock.now - begin
    after, cpu_seconds = _busy(stat), sum(os.times()[:4]) - cpu_seconds
    foreign_cores = stolen_share = 0.0
    if before and after:
        foreign_cores = max(0.0, (after[0] - before[0] - cpu_seconds) / elapsed)
        stolen_share = (after[1] - before[1]) / elapsed / (os.cpu_count() or 1)
    slow_seconds = sorted(times)[int(0.9 * len(times))]
    return Quiet(
        median(times[::2]),
        median(times[1::2]),
        slow_seconds / median(times) - 1.0,
        foreign_cores,
        stolen_share,
    )


def _busy(stat: Path) -> tuple[float, float] | None:
    """Seconds that cores were busy, and seconds that the host took; `None` if the system does not say."""
    try:
        line = stat.read_text(encoding="utf-8").splitlines()[0].split()
        ticks = [float(n) for n in line[1:]]
    except (OSError, IndexError, ValueError):
        return None
    user, nice, system, _, _, irq, softirq, steal = (ticks + [0.0] * 8)[:8]
    return (user + nice + system + irq + softirq) / TICKS_PER_SECOND, steal / TICKS_PER_SECOND
