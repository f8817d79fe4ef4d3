"""Traces: spans on a device's resources, and figures computed from them. All units are SI."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class Span(NamedTuple):
    """One op on a resource: start and end in seconds, tokens (`rows`), FLOPs, bytes, joules above idle."""

    on: str
    kind: str
    name: str
    start: float
    end: float
    rows: int
    flops: float
    bytes: float
    joules: float

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.end - self.start


class Phase(NamedTuple):
    """A named time interval (`load`, `prefill`, `decode`), in seconds of the device's clock."""

    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.end - self.start


@dataclass
class Trace:
    """All spans and phases of a device, in order of their ends.

    Attributes:
        idle_watts: power that spans' joules come on top of; `None` if it is unknown.
        spans: all ops.
        phases: all phases.
        readings: seconds, and joules that counters had counted by then; empty if none measured.
    """

    idle_watts: float | None = 0.0
    spans: list[Span] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    readings: list[tuple[float, float]] = field(default_factory=list)
    _index: tuple[list[Span], list[float], float] = field(default=([], [], 0.0), repr=False, compare=False)

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def within(self, start: float, end: float, on: str | None = None) -> Iterator[Span]:
        """Spans that overlap a window, not clipped, in order of their ends; only those on `on` if given."""
        spans, ends, longest = self._by_end()
        candidates = spans[bisect_right(ends, start) : bisect_right(ends, end + longest)]
        return (s for s in candidates if s.start < end and (on is None or s.on == on))

    def _by_end(self) -> tuple[list[Span], list[float], float]:
        """Spans sorted by end, their ends, and the longest duration; rebuilt after spans were added."""
        if len(self._index[0]) != len(self.spans):
            spans = sorted(self.spans, key=lambda s: s.end)
            longest = max((s.seconds for s in spans), default=0.0)
            self._index = spans, [s.end for s in spans], longest
        return self._index

    def busy(self, on: str, start: float = 0.0, end: float = float("inf")) -> float:
        """Seconds of a window in which a resource was busy."""
        clipped = sorted((max(s.start, start), min(s.end, end)) for s in self.within(start, end, on))
        total, busy_until = 0.0, start
        for op_start, op_end in clipped:
            total += max(0.0, op_end - max(op_start, busy_until))
            busy_until = max(busy_until, op_end)
        return total

    def joules(self, start: float, end: float) -> float | None:
        """Energy of a window, idle power included: measured, if counters were read, or by the spans' joules.

        `None` if the device's power is unknown.
        """
        if len(self.readings) > 1:
            return self._counted(end) - self._counted(start)
        if self.idle_watts is None:
            return None
        active_joules = 0.0
        for s in self.within(start, end):
            overlap = min(s.end, end) - max(s.start, start)
            active_joules += s.joules * (overlap / s.seconds if s.seconds else 1.0)
        return active_joules + self.idle_watts * (end - start)

    def _counted(self, moment: float) -> float:
        """Joules that counters had counted by a moment, on a line through the two readings around it."""
        index = bisect_right(self.readings, moment, key=lambda reading: reading[0])
        index = min(max(index, 1), len(self.readings) - 1)
        (start, start_joules), (end, end_joules) = self.readings[index - 1 : index + 1]
        return start_joules + (end_joules - start_joules) * (moment - start) / (end - start)
