"""The state of a whole sweep: its cells, which of them are finished or running, and the time left.

Must not know where notes lie or how a state is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean

from repro.experiments.progress.notes import Note, Running
from repro.experiments.progress.timings import CellWork, Timing, expected


@dataclass
class SweepPlan:
    """The cells of a sweep in their order, each with its work; `None` for an invalid configuration.

    `labels` are short names of each cell.
    """

    cells: list[CellWork | None] = field(default_factory=list)
    labels: list[Mapping[str, str]] = field(default_factory=list)

    def add(self, work: CellWork | None, labels: Mapping[str, str]) -> None:
        """One more cell."""
        self.cells.append(work)
        self.labels.append(labels)

    def name(self, number: int) -> str:
        """A cell's name: those of its labels that differ within the sweep, else its method."""
        own = self.labels[number] if number < len(self.labels) else {}
        differing = (value for name, value in own.items() if len({x.get(name) for x in self.labels}) > 1)
        return " ".join(differing) or own.get("method", f"cell {number}")

    @property
    def total(self) -> int:
        """Number of cells."""
        return len(self.cells)


@dataclass(frozen=True)
class State:
    """A moment of a sweep.

    Attributes:
        plan: its cells.
        finished: results by cell number.
        running: what running cells do, by cell number.
        elapsed: seconds since each running cell was first seen.
        timings: cells that ran on this machine, for estimates.
    """

    plan: SweepPlan
    finished: Mapping[int, Note]
    running: Mapping[int, Running]
    elapsed: Mapping[int, float]
    timings: Sequence[Timing] = ()

    @property
    def over(self) -> bool:
        """Whether all cells are finished."""
        return len(self.finished) >= self.plan.total

    @property
    def seconds_left(self) -> float | None:
        """Expected seconds until the end, cells running side by side as now; `None` if nothing is known.

        A cell takes as long as the last one of this sweep with the same work, else what such cells took on
        this machine, else what its own bar says, else the mean of this sweep's cells that ran.
        """
        rest = [n for n in range(self.plan.total) if n not in self.finished]
        whole = {n: self._whole(n) for n in rest}
        known = [seconds for seconds in whole.values() if seconds is not None]
        if rest and not known:
            return None
        left = (self._left(n, mean(known) if (own := whole[n]) is None else own) for n in rest)
        return sum(left) / max(1, len(self.running))

    def _whole(self, number: int) -> float | None:
        """Expected seconds of a cell from its beginning."""
        work = self.plan.cells[number]
        ran = {n: note.seconds for n, note in self.finished.items() if note.state == "done" and note.seconds}
        alike = [ran[n] for n in ran if n < self.plan.total and self.plan.cells[n] == work]
        if alike:
            return alike[-1]
        known = expected(work, self.timings) if work else None
        if known is not None:
            return known
        running = self.running.get(number)
        if running and running.done:
            return self.elapsed[number] * running.total / running.done
        return mean(ran.values()) if ran else None

    def _left(self, number: int, whole: float) -> float:
        """Expected seconds that a cell still takes; from its own bar if it takes longer than expected."""
        elapsed, running = self.elapsed.get(number, 0.0), self.running.get(number)
        if elapsed < whole or not (running and running.done):
            return max(whole - elapsed, 0.0)
        return elapsed * (running.total - running.done) / running.done


def in_words(seconds: float) -> str:
    """A duration: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
