"""The thread that shows a sweep's notes, in the process of the command.

Owns that thread and what is known of the cells. Launchers of Hydra's run cells in processes that leave notes
in a folder, which it reads; the driver tells it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from repro.experiments.progress import timings
from repro.experiments.progress.display import Display, display
from repro.experiments.progress.notes import Note, Running, notes_alone, results_in, running_in
from repro.experiments.progress.plan import State, SweepPlan
from repro.experiments.progress.timings import CellWork, stopwatch

LOOK_SECONDS = 0.5


class Watcher:
    """Shows a sweep's notes until it is closed; `alone` holds their folder for this sweep."""

    def __init__(self, folder: Path, shown: Display | None = None) -> None:
        """Watch a folder of notes, which may not exist yet."""
        self.folder = folder
        self.plan = SweepPlan(timings.read())
        self._display = shown
        self._began: dict[int, float] = {}
        self._running: dict[int, Running] = {}
        self._clock = stopwatch()
        self.alone = ExitStack()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def start(self, shown: bool = True) -> None:
        """Take the folder of notes, and show them if so; errors as those of `notes_alone`."""
        self.alone.enter_context(notes_alone(self.folder))
        if shown:
            self._thread.start()

    def finish(self, number: int, note: Note) -> None:
        """A cell that this process runs has ended."""
        self._running.pop(number, None)
        self.plan.finish(number, note)

    @contextmanager
    def running(self, number: int) -> Iterator[Callable[[str, int, int], None]]:
        """A cell of this process has begun. Yields its progress callback: (stage, steps done, all)."""

        def tell(stage: str, done: int, total: int) -> None:
            self._running[number] = Running(stage, done, total)

        self._running[number] = Running()
        yield tell

    def look(self, now: float) -> State:
        """Read the notes. Returns the state at `now`, a time in seconds."""
        for number, note in results_in(self.folder, self.plan.finished).items():
            self.plan.finish(number, note)
        running = {**running_in(self.folder), **self._running}
        self._began = {number: self._began.get(number, now) for number in running}
        elapsed = {number: now - since for number, since in self._began.items()}
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
