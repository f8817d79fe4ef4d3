"""The cells of a sweep and what has come of them, shown on stderr: bars in a terminal, else a line a cell.

Must not know what cells compute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from repro.experiments.summaries.notes import Note, in_words

STAGE_AFTER, LINE_EVERY = 5.0, 60.0
"""Seconds after a line at which one says what a cell has begun to do, and what it still does."""


class Watcher:
    """A sweep's cells in their order and the notes of those that have ended; shown from `start` to `close`.

    Attributes:
        announced: number of cells, if it is known before all are added.
        labels: short names of each cell.
        finished: notes by cell number, in the order in which the cells ended.
    """

    def __init__(self, console: Console | None = None) -> None:
        """A sweep without cells; `console` is stderr unless given."""
        self.announced = 0
        self.labels: list[Mapping[str, str]] = []
        self.finished: dict[int, Note] = {}
        self._console = console or Console(stderr=True)
        self._bars: Progress | None = None
        self._tasks: dict[int, TaskID] = {}
        self._first: dict[str, str | None] = {}
        self._differing: set[str] = set()
        self._is_shown = False
        self._before = 0
        self._stage, self._last = "", time.monotonic()

    @property
    def total(self) -> int:
        """Number of cells."""
        return max(self.announced, len(self.labels))

    def name(self, number: int) -> str:
        """A cell's name: those of its labels that differ within the sweep, else its method."""
        own = self.labels[number] if number < len(self.labels) else {}
        told = [label for name, label in own.items() if name in self._differing]
        return " ".join(told) or own.get("method", f"cell {number}")

    def label_names(self) -> list[str]:
        """The names of all labels that a cell has."""
        return list(self._first)

    def start(self) -> None:
        """Show the sweep from now on."""
        self._is_shown = True
        if self._console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            # Where stdout is a file, rich would print its lines to this terminal.
            to_terminal = sys.stdout.isatty()
            self._bars = Progress(
                *columns, console=self._console, transient=True, redirect_stdout=to_terminal
            )
            self._all = self._bars.add_task("cells", total=None, visible=False)
            self._bars.start()

    def close(self) -> None:
        """Leave the screen to others."""
        self._tell_known()
        self._is_shown = False
        if self._bars:
            self._bars.stop()
            self._bars = None

    def add(self, labels: Mapping[str, str]) -> None:
        """One more cell."""
        for name in dict.fromkeys((*labels, *self._first)):
            first = self._first.setdefault(name, None if self.labels else labels[name])
            if labels.get(name) != first:
                self._differing.add(name)
        self.labels.append(labels)

    def tell(self, number: int, stage: str = "", done: int = 0, total: int = 0) -> None:
        """A cell has begun, or does this: a stage of its work, the steps done and all."""
        about = f"{self.name(number)} {stage}".strip()
        if self._bars:
            if number not in self._tasks:
                self._tasks[number] = self._bars.add_task("", total=None)
            self._bars.update(self._tasks[number], description=about, completed=done, total=total or None)
            return
        wait = LINE_EVERY if about == self._stage else STAGE_AFTER
        if self._is_shown and stage and time.monotonic() - self._last >= wait:
            self._stage = about
            self._print(f"{about} {done}/{total}" if total else about)

    def leave(self, number: int) -> None:
        """A cell does not run any more and has not ended."""
        if self._bars and number in self._tasks:
            self._bars.remove_task(self._tasks.pop(number))

    def finish(self, number: int, note: Note) -> None:
        """A cell has ended."""
        self.leave(number)
        if number in self.finished:
            return
        self.finished[number] = note
        if self._bars:
            self._bars.update(
                self._all, completed=len(self.finished), total=self.total, visible=self.total > 1
            )
        if note.state == "cached":
            self._before += 1
        elif note.state in ("done", "failed", "lost"):
            took = f" in {in_words(note.seconds)}" if note.seconds is not None else ""
            self._tell_known()
            self._print(f"{self.name(number)} {note.state}{took}")

    @contextmanager
    def running(self, number: int) -> Iterator[Callable[[str, int, int], None]]:
        """A cell of this process has begun. Yields its progress callback: (stage, steps done, all)."""
        self.tell(number)
        yield partial(self.tell, number)

    def _tell_known(self) -> None:
        if self._before:
            known, self._before = self._before, 0
            self._print(f"{known} done before")

    def _print(self, line: str) -> None:
        if not self._is_shown:
            return
        count = f"{len(self.finished)} of {self.total} cells, " if self.total > 1 else ""
        self._last = time.monotonic()
        self._console.print(f"{count}{line}", highlight=False, soft_wrap=True, markup=False)


@contextmanager
def alone(method: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress of a single cell. Yields its progress callback: (stage, steps done, total steps)."""
    watched = Watcher()
    watched.add({"method": method})
    watched.start()
    try:
        with watched.running(0) as tell:
            yield tell
    finally:
        watched.close()
