"""The cells of a sweep and what has come of them, shown on stderr: bars in a terminal, else a line a cell.

Must not know what cells compute.
"""

from __future__ import annotations

import sys
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


class Watcher:
    """A sweep's cells in their order and the notes of those that have ended.

    Attributes:
        labels: short names of each cell.
        finished: notes by cell number, in the order in which the cells ended.
    """

    def __init__(self, console: Console | None = None, announced_cells: int = 0) -> None:
        """A sweep without cells yet.

        Args:
            console: stderr unless given.
            announced_cells: number of cells, if it is known before all are added.
        """
        self._announced = announced_cells
        self.labels: list[Mapping[str, str]] = []
        self.finished: dict[int, Note] = {}
        self._values: dict[str, set[str | None]] = {}
        self._tasks: dict[int, TaskID] = {}
        self._is_shown = False
        console = console or Console(stderr=True)
        columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            *columns,
            console=console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # rich would print the lines of a file to this terminal
            disable=not console.is_terminal,
        )
        self._all = self._bars.add_task("cells", total=None, visible=False)

    @property
    def total(self) -> int:
        """Number of cells."""
        return max(self._announced, len(self.labels))

    def name(self, cell_number: int) -> str:
        """A cell's name: those of its labels that differ within the sweep, else its method."""
        labels = self.labels[cell_number] if cell_number < len(self.labels) else {}
        differing_labels = [label for name, label in labels.items() if len(self._values[name]) > 1]
        return " ".join(differing_labels) or labels.get("method", f"cell {cell_number}")

    def label_names(self) -> list[str]:
        """The names of all labels that a cell has."""
        return list(self._values)

    @contextmanager
    def on_screen(self) -> Iterator[None]:
        """Within the block, the sweep is on the screen."""
        with self._bars:
            self._is_shown = True
            yield
        self._is_shown = False

    def add(self, labels: Mapping[str, str]) -> None:
        """One more cell."""
        for name in dict.fromkeys((*self._values, *labels)):
            self._values.setdefault(name, {None} if self.labels else set()).add(labels.get(name))
        self.labels.append(labels)

    def tell(self, cell_number: int, stage: str = "", done: int = 0, total: int = 0) -> None:
        """A cell has begun, or does this: a stage of its work, the steps done and all."""
        if cell_number not in self._tasks:
            self._tasks[cell_number] = self._bars.add_task("", total=None)
        description = f"{self.name(cell_number)} {stage}".strip()
        self._bars.update(
            self._tasks[cell_number], description=description, completed=done, total=total or None
        )

    def finish(self, cell_number: int, note: Note) -> None:
        """A cell has ended."""
        self.finished[cell_number] = note
        if cell_number in self._tasks:
            self._bars.remove_task(self._tasks.pop(cell_number))
        count = len(self.finished)
        self._bars.update(self._all, completed=count, total=self.total, visible=self.total > 1)
        if self._is_shown and note.state in ("done", "failed", "lost"):
            duration = f" in {in_words(note.seconds)}" if note.seconds is not None else ""
            prefix = f"{count} of {self.total} cells, " if self.total > 1 else ""
            line = f"{prefix}{self.name(cell_number)} {note.state}{duration}"
            self._bars.console.print(line, highlight=False, soft_wrap=True, markup=False)


@contextmanager
def alone(method: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress of a single cell. Yields its progress callback: (stage, steps done, total steps)."""
    watcher = Watcher()
    watcher.add({"method": method})
    with watcher.on_screen():
        yield partial(watcher.tell, 0)
