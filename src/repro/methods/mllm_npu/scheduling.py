"""Scheduling policies for tasks with dependencies on several processors (mllm-NPU sec. 3.4, and baselines).

Owns the policies and a simulator. Must not know models, the content of tasks, or devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from repro.device.op import NPU


class SubgraphTask(NamedTuple):
    """A task of one processor.

    Attributes:
        on: the processor.
        seconds: estimated duration.
        after: indices of the tasks it depends on; all lower than its own.
    """

    on: str
    seconds: float
    after: tuple[int, ...] = ()


class Agenda:
    """State of a schedule: finished, running and ready tasks.

    Attributes:
        tasks: all tasks.
        processors: processors with any task.
        ready: indices of ready tasks, by processor.
        left: number of unfinished tasks.
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
        """Start a task."""
        self.ready[self.tasks[place].on].remove(place)

    def finish(self, place: int) -> None:
        """Finish a task; tasks without other open dependencies become ready."""
        self.left -= 1
        for then in self._then[place]:
            self._open[then] -= 1
            if not self._open[then]:
                self.ready[self.tasks[then].on].add(then)

    def next_in_line(self, on: str) -> int | None:
        """The next unstarted task of a processor in list order, if ready; only used by `in_order`."""
        queue, turn = self._queue[on], self._turn[on]
        if turn == len(queue) or queue[turn] not in self.ready[on]:
            return None
        self._turn[on] = turn + 1
        return queue[turn]

    def freed(self, place: int) -> float:
        """Seconds of tasks made ready by this one: NPU tasks for other processors' tasks, and vice versa."""
        own = self.tasks[place].on == NPU
        return sum(
            self.tasks[then].seconds
            for then in self._then[place]
            if self._open[then] == 1 and (self.tasks[then].on == NPU) != own
        )


Policy = Callable[[Agenda, str], int | None]
"""Chooses the next task of a free processor; `None` leaves it idle."""


def in_order(agenda: Agenda, on: str) -> int | None:
    """List order per processor; a task that is not ready blocks those after it, so chunks hardly overlap.

    Deviation: the paper's baseline overlaps chunks "simply" (Fig. 13(a)) and does not say how.
    """
    return agenda.next_in_line(on)


def overlapped(agenda: Agenda, on: str) -> int | None:
    """The first ready task in list order, so that a later chunk fills the bubbles of an earlier one."""
    return min(agenda.ready[on], default=None)


def longest_first(agenda: Agenda, on: str) -> int | None:
    """The longest ready task; ties go to the first in the list."""
    return max(agenda.ready[on], key=lambda place: (agenda.tasks[place].seconds, -place), default=None)


def contribution(agenda: Agenda, place: int) -> float:
    """C of Eq. 6 (version 2: Eq. 5): seconds of NPU work that a task makes ready.

    For NPU tasks, minus the seconds of other work that they make ready.
    """
    freed = agenda.freed(place)
    return -freed if agenda.tasks[place].on == NPU else freed


def out_of_order(agenda: Agenda, on: str) -> int | None:
    """The ready task with the largest C; ties go to the first in the list."""
    ready = agenda.ready[on]
    if len(ready) < 2:
        return next(iter(ready), None)
    return max(ready, key=lambda place: (contribution(agenda, place), -place))


def mixed(agenda: Agenda, on: str) -> int | None:
    """C (`contribution`) for the NPU, the first ready task for the others.

    Extension: the paper takes C for all. C of the CPU's tasks looks one step ahead, so that with many
    chunks the CPU serves later ones while the NPU's next input waits.
    """
    return out_of_order(agenda, on) if on == NPU else overlapped(agenda, on)


ORDERS: dict[str, Policy] = {
    "in_order": in_order,
    "overlapped": overlapped,
    "longest_first": longest_first,
    "out_of_order": out_of_order,
    "mixed": mixed,
}
