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
        self._successors: list[list[int]] = [[] for _ in tasks]
        self._queue: dict[str, list[int]] = {on: [] for on in self.processors}
        self._turn = dict.fromkeys(self.processors, 0)
        for index, task in enumerate(tasks):
            self._queue[task.on].append(index)
            for dependency in set(task.after):
                self._successors[dependency].append(index)
            if not task.after:
                self.ready[task.on].add(index)

    def start(self, index: int) -> None:
        """Start a task."""
        self.ready[self.tasks[index].on].remove(index)

    def finish(self, index: int) -> None:
        """Finish a task; tasks without other open dependencies become ready."""
        self.left -= 1
        for successor in self._successors[index]:
            self._open[successor] -= 1
            if not self._open[successor]:
                self.ready[self.tasks[successor].on].add(successor)

    def next_in_line(self, on: str) -> int | None:
        """The next unstarted task of a processor in list order, if ready; only used by `in_order`."""
        queue, turn = self._queue[on], self._turn[on]
        if turn == len(queue) or queue[turn] not in self.ready[on]:
            return None
        self._turn[on] = turn + 1
        return queue[turn]

    def unlocked_seconds(self, index: int) -> float:
        """Seconds of tasks made ready by this one: NPU tasks for other processors' tasks, and vice versa."""
        on_npu = self.tasks[index].on == NPU
        return sum(
            self.tasks[successor].seconds
            for successor in self._successors[index]
            if self._open[successor] == 1 and (self.tasks[successor].on == NPU) != on_npu
        )


Policy = Callable[[Agenda, str], int | None]
"""Chooses the next task of a free processor; `None` leaves it idle."""


def in_order(agenda: Agenda, on: str) -> int | None:
    """List order per processor; a task that is not ready blocks those after it, so chunks hardly overlap.

    Deviation: the paper's baseline overlaps chunks "simply" (Fig. 13(a)) and does not say how.
    """
    return agenda.next_in_line(on)


def first_ready(agenda: Agenda, on: str) -> int | None:
    """The first ready task in list order, so that a later chunk fills the bubbles of an earlier one."""
    return min(agenda.ready[on], default=None)


def longest_first(agenda: Agenda, on: str) -> int | None:
    """The longest ready task; ties go to the first in the list."""
    return max(agenda.ready[on], key=lambda index: (agenda.tasks[index].seconds, -index), default=None)


def contribution(agenda: Agenda, index: int) -> float:
    """C of Eq. 6 (version 2: Eq. 5): seconds of NPU work that a task makes ready.

    For NPU tasks, minus the seconds of other work that they make ready.
    """
    seconds = agenda.unlocked_seconds(index)
    return -seconds if agenda.tasks[index].on == NPU else seconds


def out_of_order(agenda: Agenda, on: str) -> int | None:
    """The ready task with the largest C; ties go to the first in the list."""
    ready = agenda.ready[on]
    if len(ready) < 2:
        return next(iter(ready), None)
    return max(ready, key=lambda index: (contribution(agenda, index), -index))


def npu_by_contribution(agenda: Agenda, on: str) -> int | None:
    """C (`contribution`) for the NPU, the first ready task for the others.

    Extension: the paper takes C for all. C of the CPU's tasks looks one step ahead, so that with many
    chunks the CPU serves later ones while the NPU's next input waits.
    """
    return out_of_order(agenda, on) if on == NPU else first_ready(agenda, on)


ORDERS: dict[str, Policy] = {
    "in_order": in_order,
    "overlapped": first_ready,
    "longest_first": longest_first,
    "out_of_order": out_of_order,
    "mixed": npu_by_contribution,
}
