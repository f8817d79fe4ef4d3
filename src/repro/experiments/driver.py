"""The driver of a sweep: plans its cells in their order and runs them meanwhile.

Cells are planned some ahead of the one that runs, so that the first starts soon and an error of the first
hundred comes before any of them; of the others nothing is kept but their names. Cells that are equal, by
their key, run once, and those with a finished record not at all. Must not know how a cell is composed.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, repeat
from typing import Any

from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from repro.core.errors import InputError
from repro.experiments.command_words import parsed
from repro.experiments.computing import CellEngine, Lost, Outcome, Showing, WaitingCell
from repro.experiments.plan import selected
from repro.experiments.progress import Watcher
from repro.experiments.summaries.files import show_files
from repro.experiments.summaries.notes import Note
from repro.experiments.sweep import Sweep
from repro.records.record import canonical
from repro.scenarios.base import Scenario
from repro.scenarios.registry import made, scenario_of

AHEAD = 100
"""Cells that are planned before the first one runs."""

TOGETHER = 16, 400
"""Cells that are put in order of what they load: of the first ones few, so that these start soon."""


@dataclass(frozen=True)
class PlannedCell:
    """A cell of a sweep.

    Attributes:
        number: its place in the sweep.
        overrides: what its command sets beside the sweep's.
        config: its resolved configuration; `None` if that cannot be resolved.
        labels: short names.
        error: why its configuration cannot be resolved.
        table: the `table:` section of an experiment without cells (claims, facts, drawings).
    """

    number: int
    overrides: Sequence[str]
    config: Mapping[str, Any] | None
    labels: Mapping[str, str]
    error: str = ""
    table: Mapping[str, Any] | None = None


Plan = Callable[[int, Sequence[str]], PlannedCell]
"""Plans the cell of a number and overrides."""


def planned(number: int, overrides: Sequence[str], config: Mapping[str, Any]) -> PlannedCell:
    """A cell whose configuration is resolved."""
    labels = scenario_of(config).labels_of(config)
    own = {str(name): str(label) for name, label in (config["labels"] or {}).items()}
    return PlannedCell(number, overrides, config, labels | own)


@dataclass(frozen=True)
class CellOut:
    """What is kept of a cell that an engine runs: where its record goes, its key, labels and values."""

    sweep: Sweep
    key: str
    labels: dict[str, str]
    chosen: dict[str, Any]


class Driver:
    """Runs the cells of a sweep, here or with an engine; what comes of them goes to `watched`.

    It alone writes records, rounds and timelines.
    """

    def __init__(self, plan: Plan, watched: Watcher, console: Console, complete: Callable[[], None]) -> None:
        """Run cells.

        Args:
            plan: plans a cell.
            watched: the sweep's progress.
            console: shows tables that have no cells.
            complete: called when all cells are planned.
        """
        self._plan = plan
        self._watched = watched
        self._console = console
        self._complete = complete
        self._sweeps: dict[str, Sweep] = {}
        self._finished: dict[str, frozenset[str]] = {}
        self._notes: dict[str, Note] = {}
        self._out: dict[int, CellOut] = {}
        self._first: dict[str, int] = {}
        self._equal: dict[int, list[tuple[int, CellOut]]] = {}

    def run(self, jobs: Sequence[Sequence[str]], first: int = 0, engine: CellEngine | None = None) -> None:
        """Run the cells of these overrides, numbered from `first`.

        Raises:
            InputError: of a table without cells, or of an engine that cannot run any cell.
        """
        self._watched.announced = max(self._watched.announced, first + len(jobs))
        cells = _ahead(self._planned(jobs, first), AHEAD)
        if engine is not None:
            self._run_with(engine, cells)
            return
        for cell in cells:
            note, waiting, scenario = self._looked_up(cell)
            if waiting is not None:
                out = self._out.pop(cell.number)
                run = partial(out.sweep.cell, waiting.config, self._showing(cell.number), scenario)
                note = self._attempt(cell, run)
                self._notes[out.key] = note
            if note is not None:
                self._finish(cell.number, note, cell)

    def _showing(self, number: int) -> Showing:
        return lambda: self._watched.running(number)

    def _planned(self, jobs: Sequence[Sequence[str]], first: int) -> Iterator[PlannedCell]:
        for number, overrides in enumerate(jobs, first):
            cell = self._plan(number, overrides)
            self._watched.add(cell.labels)
            yield cell
        self._complete()

    def _run_with(self, engine: CellEngine, cells: Iterator[PlannedCell]) -> None:
        """Send out what is to be run, and take in what comes back."""
        for number, outcome in engine.run(ordered(self._to_run(cells))):
            out = self._out[number]
            if outcome is None:
                out.sweep.store.begin(out.key)
                self._watched.tell(number)
            else:
                self._end(number, _note(out, outcome))

    def _to_run(self, cells: Iterator[PlannedCell]) -> Iterator[WaitingCell]:
        """The cells that have to be run; all others end at once."""
        for cell in cells:
            note, waiting, _ = self._looked_up(cell)
            if note is not None:
                self._finish(cell.number, note, cell)
            elif waiting is not None:
                yield waiting

    def _end(self, number: int, note: Note) -> None:
        """A cell that was out has ended, and with it those that are equal."""
        out = self._out.pop(number)
        self._notes[out.key] = note
        self._watched.finish(number, replace(note, chosen=out.chosen))
        for other, equal in self._equal.pop(number, ()):
            self._watched.finish(other, replace(_like(note, equal.labels), chosen=equal.chosen))

    def _finish(self, number: int, note: Note, cell: PlannedCell) -> None:
        own = {} if cell.config is None else chosen(cell.config, cell.overrides)
        self._watched.finish(number, replace(note, chosen=own))

    def _looked_up(self, cell: PlannedCell) -> tuple[Note | None, WaitingCell | None, Scenario | None]:
        """The note of a cell that is not to be run, or what is to be run; neither of one that waits.

        With what is to be run comes the scenario that was made of it.

        Whatever goes wrong fails this cell and not the sweep.

        Raises:
            InputError: of a table without cells.
        """
        if cell.table is not None and cell.config is not None:
            sweep = self._sweep(cell.config)
            show_files(self._console, sweep.read(str(cell.config["name"]), cell.table))
            return Note("", dict(cell.labels), "written"), None, None
        waiting: list[tuple[WaitingCell, Scenario]] = []
        note = self._attempt(cell, lambda: self._known(cell, waiting))
        return (None, *waiting[0]) if waiting else (note, None, None)

    def _known(self, cell: PlannedCell, waiting: list[tuple[WaitingCell, Scenario]]) -> Note | None:
        """The note of a cell that is not to be run; one that is goes to `waiting`."""
        if cell.config is None:
            raise InputError(cell.error)
        sweep = self._sweep(cell.config)
        if sweep.mode == "list":
            return sweep.cell(cell.config)
        scenario = made(cell.config)
        key, labels = scenario.key, scenario.labels
        if key in self._notes:
            return _like(self._notes[key], labels)
        out = CellOut(sweep, key, labels, chosen(cell.config, cell.overrides))
        if self._first.setdefault(key, cell.number) in self._out:
            self._equal.setdefault(self._first[key], []).append((cell.number, out))
            return None
        unread = sweep.mode != "force" and not sweep.tracker.again and not scenario.own_sources
        if unread and key in self._done(sweep):
            note: Note | None = Note(key, labels, "cached", 0.0)
        else:
            note = sweep.known(scenario)
        if note is not None:
            self._notes[key] = note
            return note
        self._out[cell.number] = out
        kind = tuple(str(labels.get(name, "")) for name in ("target", "draft", "dataset"))
        one = WaitingCell(cell.number, cell.config, kind)
        waiting.append((one, scenario))
        return None

    def _attempt(self, cell: PlannedCell, work: Callable[[], Note | None]) -> Any:
        """The note of some work on a cell, also if that fails without a record."""
        try:
            return work()
        except (InputError, OmegaConfBaseException) as wrong:
            listing = cell.config is not None and cell.config.get("sweep") == "list"
            state = "invalid" if listing else "failed"  # nothing was tried
            return Note("", dict(cell.labels), state, error=" ".join(str(wrong).split()))
        except (Exception, SystemExit) as wrong:  # neither cell nor input foresees it: there is no record
            traceback.print_exc()
            return Note("", dict(cell.labels), "failed", error=f"{type(wrong).__name__}: {wrong}")

    def _sweep(self, config: Mapping[str, Any]) -> Sweep:
        """What runs a cell of this configuration; cells that write to the same places share it."""
        places = canonical({name: config[name] for name in ("sweep", "results", "outputs", "wandb")})
        if places not in self._sweeps:
            self._sweeps[places] = Sweep(config, self._console)
        self._sweeps[places].require_known(config)
        return self._sweeps[places]

    def _done(self, sweep: Sweep) -> frozenset[str]:
        """The keys that had a finished record when the sweep began."""
        place = str(sweep.results)
        if place not in self._finished:
            self._finished[place] = sweep.store.finished()
        return self._finished[place]


def _note(out: CellOut, outcome: Outcome) -> Note:
    """The note of a cell that was out, whose outcome is stored."""
    if isinstance(outcome, Lost):
        return Note(out.key, out.labels, "lost", error=str(outcome))
    if isinstance(outcome, str):
        return Note("", out.labels, "failed", error=outcome)
    return out.sweep.keep(out.labels, outcome)


def ordered(cells: Iterator[WaitingCell]) -> Iterator[WaitingCell]:
    """The cells, in stretches, those together that load the same models and rows."""
    for count in chain(TOGETHER, repeat(TOGETHER[-1])):
        stretch = sorted(islice(cells, count), key=lambda cell: cell.kind)
        if not stretch:
            return
        yield from stretch


def _like(note: Note, labels: dict[str, str]) -> Note:
    """The note of a cell that is equal to one that has ended."""
    return replace(note, labels=labels, state="cached" if note.state == "done" else note.state)


def chosen(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The values of a cell's overrides, by key: numbers as the cell has them, whatever their spelling."""
    found = {}
    for override in map(parsed, overrides):
        value = override.value()
        if isinstance(value, (int, float)):
            here = selected(config, override.key_or_group)
            value = here if isinstance(here, (int, float)) else value
        elif value is not None and not isinstance(value, (list, dict)):
            value = str(value)
        found[override.get_key_element()] = value
    return found


def _ahead(cells: Iterable[PlannedCell], count: int) -> Iterator[PlannedCell]:
    """The cells, of which so many are planned before the first is given."""
    rest = iter(cells)
    window = deque(islice(rest, count))
    while window:
        yield window.popleft()
        window.extend(islice(rest, 1))
