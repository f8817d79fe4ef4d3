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
from itertools import islice
from typing import Any

from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from repro.core.errors import InputError
from repro.experiments.cell_configs import parsed, selected
from repro.experiments.progress.notes import Note
from repro.experiments.progress.timings import CellWork, work_of
from repro.experiments.progress.watch import Watcher
from repro.experiments.summaries.files import show_files
from repro.experiments.sweep import Sweep
from repro.records.record import canonical
from repro.scenarios.registry import made, scenario_of

AHEAD = 100
"""Cells that are planned before the first one runs."""

WRONG = (InputError, OmegaConfBaseException, KeyError, TypeError, ValueError)
"""What an invalid configuration raises; the cell itself will say it."""


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


def expected_work(cell: PlannedCell) -> CellWork | None:
    """What a cell computes; `None` if its configuration is invalid."""
    try:
        return work_of(cell.config) if cell.config is not None else None
    except WRONG:
        return None


class Driver:
    """Runs the cells of a sweep in this process; what comes of them goes to `watched`."""

    def __init__(self, plan: Plan, watched: Watcher, console: Console, complete: Callable[[], None]) -> None:
        """Run cells.

        Args:
            plan: plans a cell.
            watched: the sweep's progress.
            console: shows wandb's runs.
            complete: called when all cells are planned.
        """
        self._plan = plan
        self._watched = watched
        self._console = console
        self._complete = complete
        self._sweeps: dict[str, Sweep] = {}
        self._finished: dict[str, frozenset[str]] = {}
        self._notes: dict[str, Note] = {}

    def run(self, jobs: Sequence[Sequence[str]], first: int = 0) -> None:
        """Run the cells of these overrides, numbered from `first`."""
        self._watched.plan.announced = max(self._watched.plan.announced, first + len(jobs))
        for cell in _ahead(self._planned(jobs, first), AHEAD):
            note = self.note_of(cell)
            own = {} if cell.config is None else chosen(cell.config, cell.overrides)
            self._watched.finish(cell.number, replace(note, chosen=own))

    def _planned(self, jobs: Sequence[Sequence[str]], first: int) -> Iterator[PlannedCell]:
        for number, overrides in enumerate(jobs, first):
            cell = self._plan(number, overrides)
            self._watched.plan.add(expected_work(cell), cell.labels)
            yield cell
        self._complete()

    def note_of(self, cell: PlannedCell) -> Note:
        """Run a cell unless it is done. Whatever goes wrong fails this cell and not the sweep.

        Raises:
            InputError: of a table without cells.
        """
        if cell.table is not None and cell.config is not None:
            sweep = self._sweep(cell.config)
            show_files(self._console, sweep.read(str(cell.config["name"]), cell.table))
            return Note("", dict(cell.labels), "written")
        mode = "run"
        try:
            if cell.config is None:
                raise InputError(cell.error)
            sweep = self._sweep(cell.config)
            mode = sweep.mode
            if mode == "list":
                return sweep.cell(cell.config)
            scenario = made(cell.config)
            before = self._notes.get(scenario.key)
            if before is not None:
                state = "cached" if before.state == "done" else before.state
                return replace(before, labels=scenario.labels, state=state)
            if mode != "force" and not sweep.tracker.again and scenario.key in self._done(sweep):
                note = Note(scenario.key, scenario.labels, "cached", 0.0)
            else:
                note = sweep.cell(cell.config, lambda work: self._watched.running(cell.number))
            self._notes[scenario.key] = note
            return note
        except (InputError, OmegaConfBaseException) as wrong:
            state = "invalid" if mode == "list" else "failed"  # nothing was tried
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
