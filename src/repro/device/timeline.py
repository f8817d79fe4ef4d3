"""A trace as a timeline in Chrome's trace event format, for Perfetto.

Owns lanes, nesting, counters and the rounding of times. Must not know methods or models: what the ops belong
to (requests, rounds, passes) is passed in as parts.

Times are whole microseconds, and a duration is the rounded end minus the rounded start. Perfetto drops a
slice that begins inside another one of its lane and ends after it, so slices of a lane nest or follow one
another.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from itertools import groupby
from math import fsum, inf
from operator import itemgetter
from typing import NamedTuple

from repro.device.op import FLASH
from repro.device.trace import Span, Trace

Event = dict[str, object]


class Level(IntEnum):
    """Kinds of slices, outer ones first."""

    REQUEST = 0
    PHASE = 1
    ROUND = 2
    PASS = 3
    OP = 4

    @property
    def nests(self) -> bool:
        """Whether slices of this level may lie inside one another."""
        return self < Level.PASS


@dataclass(frozen=True)
class TimelinePart:
    """Something that ops belong to, in seconds of the device's clock.

    `role` is the model of a pass; the names of its ops begin with it.
    """

    level: Level
    name: str
    start: float
    end: float
    args: Mapping[str, object] = field(default_factory=dict)
    role: str = ""


class Slice(NamedTuple):
    """A slice of a lane, in microseconds; `owner` is the number of the pass that an op belongs to."""

    level: Level
    name: str
    kind: str
    start: int
    end: int
    args: Mapping[str, object]
    owner: int | None = None

    @property
    def order(self) -> tuple[int, int, int]:
        """Sorts slices by start, outer ones first, and an empty op before the next."""
        return self.start, self.level, -self.end if self.level.nests else self.end

    def holds(self, inner: Slice) -> bool:
        """Whether a slice that begins in this one lies inside it."""
        allowed = self.level < inner.level or (self.level == inner.level and self.level.nests)
        return allowed and inner.end <= self.end


def micro(seconds: float) -> int:
    """A time in whole microseconds."""
    return round(seconds * 1e6)


def chrome(
    trace: Trace,
    process: str,
    parts: Sequence[TimelinePart] = (),
    memory: Sequence[tuple[float, float]] = (),
    until: float = inf,
) -> str:
    """A trace as JSON: requests with phases, rounds and passes; ops by resource and pass; counters.

    Equal input gives equal text.

    Args:
        trace: spans and phases.
        process: the name shown above all lanes.
        parts: requests, rounds and passes.
        memory: (seconds, bytes held from then on).
        until: what begins at or after this second is left out.
    """
    trace = Trace(trace.idle_watts, [s for s in trace if s.start < until], trace.phases)
    parts, memory = [p for p in parts if p.start < until], [m for m in memory if m[0] < until]
    phases = [TimelinePart(Level.PHASE, p.name, p.start, p.end) for p in trace.phases if p.start < until]
    lanes = _lanes("requests", "meanwhile", [_part(part) for part in (*parts, *phases)])
    passes = _Passes([part for part in parts if part.level is Level.PASS])
    for on in sorted({span.on for span in trace}):
        # Layers are read ahead, also for the next pass: reads belong to none.
        ops = [_op(s, None if on == FLASH else passes.of(s)) for s in trace if s.on == on]
        lanes |= {name: list(passes.around(lane)) for name, lane in _lanes(on, on, ops).items()}
    events = [_meta("process_name", 0, process)]
    for number, (name, lane) in enumerate(lanes.items()):
        events += [_meta("thread_name", number, name), _meta("thread_sort_index", number, number)]
        events += [_event(number, piece) for piece in lane]
    events += _counters(trace, memory)
    content = {"traceEvents": events, "displayTimeUnit": "ms"}
    return json.dumps(content, separators=(",", ":"), sort_keys=True)


class _Passes:
    """Finds the pass of an op: a role's passes follow one another."""

    def __init__(self, passes: Sequence[TimelinePart]) -> None:
        self._passes = passes
        self._by_role: dict[str, list[int]] = {}
        for number in sorted(range(len(passes)), key=lambda i: passes[i].start):
            self._by_role.setdefault(passes[number].role, []).append(number)
        self._starts = {role: [passes[i].start for i in numbers] for role, numbers in self._by_role.items()}

    def of(self, span: Span) -> int | None:
        """The number of the pass in which an op began; None outside all passes of its model."""
        role = span.name.partition(" ")[0]
        position = bisect_right(self._starts.get(role, ()), span.start) - 1
        if position < 0:
            return None
        number = self._by_role[role][position]
        return number if span.start < self._passes[number].end else None

    def around(self, ops: Sequence[Slice]) -> Iterator[Slice]:
        """The ops of a lane, with a slice of their pass before those that follow one another."""
        for number, group in groupby(ops, lambda op: op.owner):
            pass_ops = list(group)
            if number is not None:
                part = self._passes[number]
                yield Slice(Level.PASS, part.name, "pass", pass_ops[0].start, pass_ops[-1].end, part.args)
            yield from pass_ops


def _lanes(name: str, others: str, slices: Sequence[Slice]) -> dict[str, list[Slice]]:
    """Slices by lane, each in the first lane where it overlaps none in part; at least one lane."""
    lanes: list[list[Slice]] = [[]]
    open_slices: list[list[Slice]] = [[]]  # by lane: the slices that hold the next one, outer ones first
    for piece in sorted(slices, key=lambda s: s.order):
        lane_index = next((i for i, holders in enumerate(open_slices) if _fits(holders, piece)), len(lanes))
        if lane_index == len(lanes):
            lanes.append([])
            open_slices.append([])
        lanes[lane_index].append(piece)
        open_slices[lane_index].append(piece)
    more_names = [others if i == 2 and others != name else f"{others} {i}" for i in range(2, len(lanes) + 1)]
    return dict(zip([name, *more_names], lanes, strict=True))


def _fits(holders: list[Slice], piece: Slice) -> bool:
    """Whether the next slice may go to a lane; drops those of its holders that have ended."""
    while holders and holders[-1].end <= piece.start:
        holders.pop()
    return not holders or holders[-1].holds(piece)


def _part(part: TimelinePart) -> Slice:
    kind = part.level.name.lower()
    return Slice(part.level, part.name, kind, micro(part.start), micro(part.end), part.args)


def _op(span: Span, owner: int | None) -> Slice:
    args = _figures(span.rows, span.flops, span.bytes, span.joules)
    return Slice(Level.OP, span.name, span.kind, micro(span.start), micro(span.end), args, owner)


@lru_cache(maxsize=4096)
def _figures(rows: int, flops: float, size: float, joules: float) -> Mapping[str, object]:
    figures = {"rows": rows, "flops": flops, "bytes": size, "joules": joules}
    return {name: _short(value) for name, value in figures.items() if value}


def _meta(name: str, lane: int, value: str | int) -> Event:
    args = {"sort_index" if isinstance(value, int) else "name": value}
    return {"ph": "M", "name": name, "pid": 0, "tid": lane, "args": args}


def _event(lane: int, piece: Slice) -> Event:
    times = {"ts": piece.start, "dur": piece.end - piece.start, "args": piece.args}
    return {"ph": "X", "name": piece.name, "cat": piece.kind, "pid": 0, "tid": lane, **times}


def _counters(trace: Trace, memory: Sequence[tuple[float, float]]) -> Iterator[Event]:
    """Memory held, bytes moved per second and power; each op's bytes and joules are spread over its time."""
    rates = list(_rates(trace))
    yield from _counter("memory (GB)", sorted({micro(moment): size / 1e9 for moment, size in memory}.items()))
    yield from _counter("DRAM traffic (GB/s)", ((moment, moved / 1e9) for moment, moved, _ in rates))
    if trace.idle_watts is not None:
        idle = trace.idle_watts
        yield from _counter("power (W)", ((moment, watts + idle) for moment, _, watts in rates))


def _rates(trace: Trace) -> Iterator[tuple[int, float, float]]:
    """Microseconds at which ops start or end, and the bytes and joules per second from then on."""
    starts = [(micro(span.start), micro(span.end), number) for number, span in enumerate(trace)]
    edges = [(0, -1, False)]
    for start, end, number in starts:
        if end > start:
            edges += [(start, number, True), (end, number, False)]
    running: dict[int, tuple[float, float]] = {}
    for moment, group in groupby(sorted(edges), key=itemgetter(0)):
        for _, number, begins in group:
            if begins:
                span = trace.spans[number]
                running[number] = span.bytes / span.seconds, span.joules / span.seconds
            else:
                running.pop(number, None)
        yield moment, fsum(rate for rate, _ in running.values()), fsum(rate for _, rate in running.values())


def _counter(name: str, values: Iterable[tuple[int, float]]) -> Iterator[Event]:
    """Events of a counter where it changes, in the first four digits."""
    last_value: float | None = None
    last_exact: float | None = None
    for moment, value in values:
        if value == last_exact:
            continue
        last_exact, short = value, _short(value, 4)
        if short != last_value:
            yield {"ph": "C", "name": name, "pid": 0, "ts": moment, "args": {"value": short}}
            last_value = short


def _short(value: float, digits: int = 6) -> float:
    """A figure in its first digits, as an integer where it is one."""
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() else short
