"""Which task a processor takes next, where tasks stand on each other (mllm-NPU sec. 3.4, and baselines).

Owns the policies and a simulator for them. Knows nothing of models, of what tasks do, or of devices.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from repro.device.op import NPU


class SubgraphTask(NamedTuple):
    """Work for one processor.

    Attributes:
        on: the processor.
        seconds: how long it takes, as far as is known.
        after: places in the list of what must be over before; all of them lower than its own.
    """

    on: str
    seconds: float
    after: tuple[int, ...] = ()


class Agenda:
    """Tasks, of which some are done and some may begin.

    Attributes:
        tasks: all of them.
        processors: those that any is for.
        ready: by processor, what may begin now.
        left: how many are not over.
    """

    def __init__(self, tasks: Sequence[SubgraphTask]) -> None:
        self.tasks = tasks
        self.processors = tuple(dict.fromkeys(task.on for task in tasks))
        self.ready: dict[str, set[int]] = {on: set() for on in self.processors}
        self.left = len(tasks)
        self._open = [len(set(task.after)) for task in tasks]
        self._then: list[list[int]] = [[] for _ in tasks]
        self._queue: dict[str, list[int]] = {on: [] for on in self.processors}
        self._turn = dict.fromkeys(self.processors, 0)
        for place, task in enumerate(tasks):
            self._queue[task.on].append(place)
            for before in set(task.after):
                self._then[before].append(place)
            if not task.after:
                self.ready[task.on].add(place)

    def start(self, place: int) -> None:
        """A task begins."""
        self.ready[self.tasks[place].on].remove(place)

    def finish(self, place: int) -> None:
        """A task is over; what waited for it alone may begin."""
        self.left -= 1
        for then in self._then[place]:
            self._open[then] -= 1
            if not self._open[then]:
                self.ready[self.tasks[then].on].add(then)

    def next_in_line(self, on: str) -> int | None:
        """The first task of a processor that has not begun, if it may begin; used by `in_order` alone."""
        queue, turn = self._queue[on], self._turn[on]
        if turn == len(queue) or queue[turn] not in self.ready[on]:
            return None
        self._turn[on] = turn + 1
        return queue[turn]

    def freed(self, place: int) -> float:
        """Seconds of what a task's end lets the other side begin: the NPU, or if it is its own, the rest."""
        own = self.tasks[place].on == NPU
        return sum(
            self.tasks[then].seconds
            for then in self._then[place]
            if self._open[then] == 1 and (self.tasks[then].on == NPU) != own
        )


Policy = Callable[[Agenda, str], int | None]
"""What a processor that is free begins of an agenda; `None` lets it wait."""


def in_order(agenda: Agenda, on: str) -> int | None:
    """Strictly as listed: what may not begin keeps all behind it waiting."""
    return agenda.next_in_line(on)


def longest_first(agenda: Agenda, on: str) -> int | None:
    """Of all that may begin what takes longest; of equals the first listed."""
    return max(agenda.ready[on], key=lambda place: (agenda.tasks[place].seconds, -place), default=None)


def contribution(agenda: Agenda, place: int) -> float:
    """How much a task helps to keep the NPU busy (Eq. 6's C): elsewhere the NPU work that it frees; on the
    NPU itself, less the other work that it frees."""
    freed = agenda.freed(place)
    return -freed if agenda.tasks[place].on == NPU else freed


def out_of_order(agenda: Agenda, on: str) -> int | None:
    """Of all that may begin what has the largest C; of equals the first listed."""
    ready = agenda.ready[on]
    if len(ready) < 2:
        return next(iter(ready), None)
    return max(ready, key=lambda place: (contribution(agenda, place), -place))


ORDERS: dict[str, Policy] = {
    "in_order": in_order,
    "longest_first": longest_first,
    "out_of_order": out_of_order,
}


@dataclass(frozen=True)
class SubgraphSchedule:
    """When each task runs.

    Attributes:
        starts: seconds, by place in the list.
        ends: likewise.
        decisions: how often a free processor was asked.
    """

    starts: tuple[float, ...]
    ends: tuple[float, ...]
    decisions: int

    @property
    def seconds(self) -> float:
        """When all is over."""
        return max(self.ends, default=0.0)


def schedule(tasks: Sequence[SubgraphTask], choose: Policy) -> SubgraphSchedule:
    """Play a policy: a processor does one task at a time, and asks again when any task is over.

    Raises:
        RuntimeError: the policy lets all wait for ever.
    """
    agenda, now, decisions = Agenda(tasks), 0.0, 0
    starts, ends = [0.0] * len(tasks), [0.0] * len(tasks)
    free, running = set(agenda.processors), list[tuple[float, int]]()
    while agenda.left:
        for on in [on for on in agenda.processors if on in free]:
            decisions += 1
            place = choose(agenda, on)
            if place is not None:
                agenda.start(place)
                free.remove(on)
                starts[place], ends[place] = now, now + tasks[place].seconds
                heapq.heappush(running, (ends[place], place))
        if not running:
            raise RuntimeError("no task may begin and none is under way")
        now, place = heapq.heappop(running)
        agenda.finish(place)
        free.add(tasks[place].on)
    return SubgraphSchedule(tuple(starts), tuple(ends), decisions)
