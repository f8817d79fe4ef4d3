"""How much of the processor other programs take, and which one takes most. Must not know what is measured."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
TICKS = float(os.sysconf("SC_CLK_TCK"))
KERNEL = 2
"""Process whose children are the kernel's own threads; what a disk's reads cost there is not another's."""


class Load(NamedTuple):
    """What others took over a stretch of time.

    Attributes:
        cores: mean number of cores that they kept busy, the host of a virtual machine included.
        most: the program that took most, with its process id; "" if none took any.
    """

    cores: float
    most: str

    @property
    def sentence(self) -> str:
        """In words."""
        return f"others keep {self.cores:.2f} cores busy" + (
            f", most of all {self.most}" if self.most else ""
        )


class OtherLoad:
    """Measures others from its creation on; this process and its parent are none."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._start, self._before, self._stolen = time.monotonic(), _seconds(proc), _stolen(proc)

    def load(self) -> Load:
        """What others have taken since."""
        took = time.monotonic() - self._start
        after, own = _seconds(self._proc), {os.getpid(), os.getppid()}
        gone = sum(whole for pid, (_, whole, _) in self._before.items() if pid not in after)
        grown = {
            pid: (
                alone - self._before.get(pid, (0.0, 0.0, ""))[0],
                whole - self._before.get(pid, (0.0, 0.0, ""))[1],
            )
            for pid, (alone, whole, _) in after.items()
            if pid not in own
        }
        # A program that ended is counted by its parent, with all that it took before, too.
        total = max(
            sum(max(0.0, alone) for alone, _ in grown.values()), sum(w for _, w in grown.values()) - gone
        )
        stolen = _stolen(self._proc) - self._stolen
        alone = {pid: seconds for pid, (seconds, _) in grown.items() if seconds > 0}
        most = max(alone, key=alone.__getitem__, default=None)
        name = "" if most is None else f"{after[most][2]} (process {most})"
        return Load((max(0.0, total) + stolen) / took, "the host of this machine" if stolen > total else name)


def _seconds(proc: Path) -> dict[int, tuple[float, float, str]]:
    """Seconds that each program took, those with its ended children, and its name; without the kernel's."""
    found = {}
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            name, _, rest = (folder / "stat").read_text(encoding="utf-8").partition("(")[2].rpartition(")")
        except OSError:
            continue  # it ended
        fields = rest.split()
        if int(fields[1]) != KERNEL:
            user, system, *ended = (int(field) / TICKS for field in fields[11:15])
            found[int(folder.name)] = (user + system, user + system + sum(ended), name)
    return found


def _stolen(proc: Path) -> float:
    """Seconds that the host of a virtual machine took away."""
    fields = (proc / "stat").read_text(encoding="utf-8").split("\n", 1)[0].split()
    return int(fields[8]) / TICKS if len(fields) > 8 else 0.0
