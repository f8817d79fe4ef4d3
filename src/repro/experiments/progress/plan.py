"""The state of a whole sweep: its cells, which of them are finished or running, and the time left.

What is shown of it takes constant time a cell that begins or ends, whatever the number of cells. Must not
know where notes lie or how a state is shown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from repro.experiments.progress.notes import Note, Running
from repro.experiments.progress.timings import CellWork, Estimates, Timing


class SweepPlan:
    """The cells of a sweep in their order, each with its work, and the notes of those that have ended.

    Attributes:
        announced: number of cells, if it is known before all are added.
        labels: short names of each cell.
        finished: notes by cell number, in the order in which the cells ended.
    """

    def __init__(self, timings: Iterable[Timing] = ()) -> None:
        """A sweep without cells; `timings` are of cells that ran on this machine."""
        self.announced = 0
        self.labels: list[Mapping[str, str]] = []
        self.finished: dict[int, Note] = {}
        self._works: list[CellWork | None] = []
        self._estimates = Estimates(timings)
        self._foreseen: dict[CellWork, float | None] = {}
        self._took: dict[CellWork, float] = {}
        self._left: Counter[CellWork] = Counter()
        self._ran = _Mean()
        self._known = _Mean()
        """Of the cells that have not ended and whose work this sweep has done before."""
        self._paces: dict[tuple[str, str], _Pace] = defaultdict(_Pace)
        """Of all others, by method and clock."""
        self._first: dict[str, str | None] = {}
        self._differing: dict[str, None] = {}

    def add(self, work: CellWork | None, labels: Mapping[str, str]) -> None:
        """One more cell; `None` for the work of an invalid configuration."""
        for name in dict.fromkeys((*labels, *self._first)):
            first = self._first.setdefault(name, None if self.labels else labels[name])
            if labels.get(name) != first:
                self._differing[name] = None
        self._works.append(work)
        self.labels.append(labels)
        if work is not None:
            if work not in self._foreseen:
                self._foreseen[work] = self._estimates.expected(work)
            self._left[work] += 1
            self._count(work, 1)

    def finish(self, number: int, note: Note) -> None:
        """A cell has ended."""
        if number in self.finished:
            return
        self.finished[number] = note
        ran = note.seconds if note.state == "done" else None
        self._ran.add(ran, 1)
        work = self._works[number] if number < len(self._works) else None
        if work is None:
            return
        self._count(work, -1)
        self._left[work] -= 1
        if ran is not None:  # the next with this work takes as long
            self._count(work, -self._left[work])
            if work not in self._took:
                self._paces[work.method, work.clock].end(ran, self._foreseen[work])
            self._took[work] = ran
            self._count(work, self._left[work])

    def _count(self, work: CellWork, cells: int) -> None:
        """So many more cells with this work have not ended."""
        if work in self._took:
            self._known.add(self._took[work], cells)
        else:
            self._paces[work.method, work.clock].left.add(self._foreseen[work], cells)

    def expected(self, number: int) -> float | None:
        """Expected seconds of a cell; `None` if nothing like it has run."""
        work = self._works[number] if number < len(self._works) else None
        if work is None:
            return None
        if work in self._took:
            return self._took[work]
        foreseen = self._foreseen[work]
        return None if foreseen is None else foreseen * self._paces[work.method, work.clock].share

    def name(self, number: int) -> str:
        """A cell's name: those of its labels that differ within the sweep, else its method."""
        own = self.labels[number] if number < len(self.labels) else {}
        return " ".join(own[n] for n in own if n in self._differing) or own.get("method", f"cell {number}")

    def label_names(self) -> list[str]:
        """The names of all labels that a cell has."""
        return list(self._first)

    @property
    def total(self) -> int:
        """Number of cells."""
        return max(self.announced, len(self.labels))

    def seconds_left(self, running: Mapping[int, Running], elapsed: Mapping[int, float]) -> float | None:
        """Expected seconds until the end, cells running side by side as now; `None` if nothing is known.

        A cell takes as long as the last one of this sweep with the same work, else what such cells took on
        this machine times the share of that which this sweep's cells of its method took, else what its own
        bar says, else the mean of this sweep's cells that ran.
        """
        wholes = {number: self._whole(number, running[number], elapsed[number]) for number in running}
        known = self._known.copy()
        for pace in self._paces.values():
            known.add_all(pace.left, pace.share)
        for number, whole in wholes.items():
            if self.expected(number) is None:
                known.add(whole, 1)
        unknown = self.total - len(self.finished) - known.count
        mean = self._ran.value if self._ran.count else known.value
        if unknown and mean is None:
            return None
        left = known.sum + unknown * (mean or 0.0)
        for number, whole in wholes.items():
            seconds = whole if whole is not None else mean or 0.0
            left += _left(seconds, running[number], elapsed[number]) - seconds
        return max(left, 0.0) / max(1, len(running))

    def _whole(self, number: int, running: Running, elapsed: float) -> float | None:
        """Expected seconds of a running cell from its beginning, by its work or by its own bar."""
        known = self.expected(number)
        if known is None and running.done:
            return elapsed * running.total / running.done
        return known


class _Mean:
    """Seconds of which some are added and some taken away."""

    def __init__(self, total: float = 0.0, count: int = 0) -> None:
        self.sum = total
        self.count = count

    def add(self, seconds: float | None, count: int) -> None:
        if seconds is not None:
            self.sum += seconds * count
            self.count += count

    def add_all(self, other: _Mean, share: float) -> None:
        self.sum += other.sum * share
        self.count += other.count

    def copy(self) -> _Mean:
        return _Mean(self.sum, self.count)

    @property
    def value(self) -> float | None:
        return self.sum / self.count if self.count else None


class _Pace:
    """Cells of a method by what such cells took on this machine.

    Attributes:
        left: those that have not ended.
        share: what those that ended took of what was foreseen; packs may have what a cell would compute.
    """

    def __init__(self) -> None:
        self.left = _Mean()
        self._took = self._foreseen = 0.0

    def end(self, took: float, foreseen: float | None) -> None:
        if foreseen:
            self._took += took
            self._foreseen += foreseen

    @property
    def share(self) -> float:
        return self._took / self._foreseen if self._foreseen else 1.0


def _left(whole: float, running: Running, elapsed: float) -> float:
    """Expected seconds that a cell still takes; from its own bar if it takes longer than expected."""
    if elapsed < whole or not running.done:
        return max(whole - elapsed, 0.0)
    return elapsed * (running.total - running.done) / running.done


@dataclass(frozen=True)
class State:
    """A moment of a sweep.

    Attributes:
        plan: its cells, and the notes of those that have ended.
        running: what running cells do, by cell number.
        elapsed: seconds since each running cell was first seen.
    """

    plan: SweepPlan
    running: Mapping[int, Running]
    elapsed: Mapping[int, float]

    @property
    def over(self) -> bool:
        """Whether all cells are finished."""
        return len(self.plan.finished) >= self.plan.total

    @property
    def seconds_left(self) -> float | None:
        """Expected seconds until the end (`SweepPlan.seconds_left`)."""
        return self.plan.seconds_left(self.running, self.elapsed)


def in_words(seconds: float) -> str:
    """A duration: `0.05 s`, `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
