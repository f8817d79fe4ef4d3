"""The thread that shows a sweep's progress, in the process of the command.

Owns that thread and what the driver has told of the cells, wherever they run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from repro.experiments.progress import timings
from repro.experiments.progress.display import Display, display
from repro.experiments.progress.notes import Note, Running
from repro.experiments.progress.plan import State, SweepPlan
from repro.experiments.progress.timings import CellWork, stopwatch

LOOK_SECONDS = 0.5


class Watcher:
    """Shows a sweep until it is closed."""

    def __init__(self, shown: Display | None = None) -> None:
        """Watch a sweep without cells."""
        self.plan = SweepPlan(timings.read())
        self._display = shown
        self._began: dict[int, float] = {}
        self._running: dict[int, Running] = {}
        self._clock = stopwatch()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def start(self) -> None:
        """Show it from now on."""
        self._thread.start()

    def tell(self, number: int, stage: str = "", done: int = 0, total: int = 0) -> None:
        """A cell has begun, or does this."""
        self._began.setdefault(number, self._clock())
        self._running[number] = Running(stage, done, total)

    def leave(self, number: int) -> None:
        """A cell does not run any more and has not ended."""
        self._running.pop(number, None)
        self._began.pop(number, None)

    def finish(self, number: int, note: Note) -> None:
        """A cell has ended."""
        self.leave(number)
        self.plan.finish(number, note)

    @contextmanager
    def running(self, number: int) -> Iterator[Callable[[str, int, int], None]]:
        """A cell of this process has begun. Yields its progress callback: (stage, steps done, all)."""
        self.tell(number)
        yield partial(self.tell, number)

    def look(self, now: float) -> State:
        """The state at `now`, a time in seconds."""
        running = dict(self._running)
        elapsed = {number: now - self._began.get(number, now) for number in running}
        return State(self.plan, running, elapsed)

    def close(self) -> None:
        """Show the last state and stop."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        try:
            while not self._over.wait(LOOK_SECONDS):
                self._show()
            self._show()
        finally:
            if self._display is not None:
                self._display.close()

    def _show(self) -> None:
        if not self.plan.total:
            return
        now = self._clock()
        self._display = self._display or display()
        self._display.show(self.look(now), now)


@contextmanager
def alone(work: CellWork) -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress of a single cell. Yields its progress callback: (stage, steps done, total steps)."""
    shown, plan, clock = display(), SweepPlan(timings.read()), stopwatch()
    plan.add(work, {"method": work.method})

    def tell(stage: str, done: int, total: int) -> None:
        running, now = {0: Running(stage, done, total)}, clock()
        shown.show(State(plan, running, {0: now}), now)

    try:
        yield tell
    finally:
        shown.close()
