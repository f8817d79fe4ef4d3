"""What the screen shows while a sweep or a cell runs: bars in a terminal, else lines of text.

All of it goes to stderr, so that stdout has results alone. Must not know what cells compute.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import islice
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from repro.experiments.progress.notes import Note, Running
from repro.experiments.progress.plan import State, in_words

LINE_EVERY = 60.0
"""Seconds between two lines of text while nothing ends."""
NAMED = 4
"""Cells that ended between two lines, up to which each is named."""
STAGE_AFTER = 5.0
"""Seconds after the last line at which one says what a cell has begun to do."""


class Display(Protocol):
    """Shows the states of a sweep, one after the other."""

    def show(self, state: State, now: float) -> None:
        """Show a state; `now` is a time in seconds."""

    def close(self) -> None:
        """Leave the screen to others."""


def display(console: Console | None = None) -> Display:
    """Bars if stderr is a terminal, else lines."""
    console = console or Console(stderr=True)
    return Bars(console) if console.is_terminal else Lines(console)


class _News:
    """The cells that finished since the last state, in words: a few by name, more than `NAMED` counted."""

    def __init__(self) -> None:
        self._told = 0
        self._before = 0

    def lines(self, state: State) -> list[str]:
        """Of new cells that ran a line each, or a count; of those done before a count when another ends."""
        new = dict(islice(state.plan.finished.items(), self._told, None))
        self._told += len(new)
        ran = [n for n, note in new.items() if note.state in ("done", "failed", "lost")]
        self._before += sum(note.state == "cached" for note in new.values())
        lines = []
        if self._before and (ran or state.over):
            lines.append(f"{self._before} done before")
            self._before = 0
        if len(ran) > NAMED:
            return lines + [f"{count} {how}" for how, count in Counter(new[n].state for n in ran).items()]
        return lines + [_ended(state.plan.name(n), new[n]) for n in ran]


def _ended(name: str, note: Note) -> str:
    took = f" in {in_words(note.seconds)}" if note.seconds is not None else ""
    return f"{name} {note.state}{took}"


def _count(state: State) -> str:
    return f"{len(state.plan.finished)} of {state.plan.total} cells" if state.plan.total > 1 else ""


def _left(state: State) -> str:
    seconds = None if state.over else state.seconds_left
    return "" if seconds is None else f"about {in_words(seconds)} left"


def _doing(name: str, running: Running) -> str:
    steps = f" {running.done}/{running.total}" if running.total else ""
    return f"{name} {running.stage}".strip() + steps


def _print(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)


class Lines:
    """A line at the end of each cell that ran, at a stage of some seconds, and once a minute."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._news = _News()
        self._last: float | None = None
        self._stages: set[tuple[int, str]] = set()

    def show(self, state: State, now: float) -> None:
        """See `Display`."""
        self._last = now if self._last is None else self._last
        news = self._news.lines(state)
        stages = {(number, one.stage) for number, one in state.running.items() if one.stage}
        wait = STAGE_AFTER if stages - self._stages else LINE_EVERY
        if not news and (state.over or now - self._last < wait):
            return
        self._stages |= stages
        doing = [] if news else [_doing(state.plan.name(n), one) for n, one in state.running.items()]
        parts = [_count(state), *news, *doing, _left(state)]
        _print(self._console, ", ".join(part for part in parts if part))
        self._last = now

    def close(self) -> None:
        """See `Display`."""


class Bars:
    """A bar over all cells with the time left, below it one for each running cell."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        # Where stdout is a file, rich would print its lines to this terminal.
        self._bars = Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty())
        self._news = _News()
        self._tasks: dict[int, TaskID] = {}
        self._all = self._bars.add_task("cells", total=None, left="")
        self._bars.start()

    def show(self, state: State, now: float) -> None:
        """See `Display`."""
        for line in self._news.lines(state):
            _print(self._bars.console, line)
        total, done = state.plan.total, len(state.plan.finished)
        left = _left(state)
        self._bars.update(self._all, completed=done, total=total, left=left, visible=total > 1)
        for number in self._tasks.keys() - state.running.keys():
            self._bars.remove_task(self._tasks.pop(number))
        for number, one in state.running.items():
            if number not in self._tasks:
                self._tasks[number] = self._bars.add_task("", total=None, left="")
            about = f"{state.plan.name(number)} {one.stage}".strip()
            steps = one.total or None
            bar = self._tasks[number]
            own = left if total == 1 else ""
            self._bars.update(bar, description=about, completed=one.done, total=steps, left=own)

    def close(self) -> None:
        """See `Display`."""
        self._bars.stop()
