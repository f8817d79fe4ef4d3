"""A sweep: its cells are looked up, computed here or by other workers, stored as they end, and make a table.

Cells with a finished record are not computed, equal ones (by their key) once. `compute` works in whatever
process and writes nothing; the sweep's process alone writes. Must not know Hydra.
"""

from __future__ import annotations

import gzip
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table as Grid

from repro.core.errors import InputError, warn
from repro.core.paths import from_home
from repro.core.registry import unknown
from repro.experiments.cell_settings import RecordsBySettings
from repro.experiments.interrupted import heed
from repro.experiments.pages import write_read
from repro.experiments.plan import PlannedCell
from repro.experiments.progress import Watcher
from repro.experiments.summaries.files import show_files
from repro.experiments.summaries.notes import Note, in_words
from repro.experiments.tables import Asked, made_table, older_keys, update_index
from repro.experiments.tracking.tracker import Tracker
from repro.records.build_cache import file_error, one_at_a_time
from repro.records.identity import portable_text
from repro.records.members import Member
from repro.records.provenance import LayerCount, counting_layers
from repro.records.record import Record, Round, write_atomically
from repro.records.results import open_results
from repro.reports.files import write_all
from repro.reports.formats.layout import page
from repro.reports.formats.render import MOST_ROWS, to_screen
from repro.reports.intervals.samples import Samples
from repro.reports.reference.bibliography import load_bibliography
from repro.reports.spec.spec import TableSpec
from repro.reports.tables import members
from repro.reports.tables.aggregate import varying
from repro.reports.tables.table import Table
from repro.scenarios.base import Progress, Scenario, silent
from repro.scenarios.registry import made
from repro.scenarios.sections import FOLDER_SETTINGS, check_known, check_places

SWEEP_MODES = ("run", "list", "retry", "force")
MOST_TIMELINES = 8
"""Timelines above which a sweep names their folder instead of each."""

FREE_BYTES = 20_000_000
"""Bytes that must be free before a cell starts; its record, rounds and timeline take far less."""

CHECK_S = 1.0
"""How often it is checked at most that records can be stored."""

PLANNED_AHEAD = 100
"""Cells that are planned before the first one runs; an error of one of them comes before any runs."""


@dataclass(frozen=True)
class Computed:
    """What comes of a cell: plain data.

    Attributes:
        record: its record, of a failed cell with the traceback.
        rounds: one line for each round.
        answers: one line for each answer.
        timeline: its Chrome trace, gzipped, which lies where the record says; empty if it has none.
        seconds: how long it took; `None` if it failed.
        error: why it failed, in a sentence.
    """

    record: Record
    rounds: Sequence[Round] = ()
    answers: Sequence[Round] = ()
    timeline: bytes = b""
    seconds: float | None = None
    error: str = ""


class Lost(str):
    """Why a cell was given up whose workers died."""


Outcome = Computed | str
"""What comes of a cell, or the sentence why nothing does."""

Cell = tuple[str, Mapping[str, Any]]
"""The key and the resolved configuration of a cell that is to be computed."""

Engine = Callable[[Iterator[Cell]], Iterator[tuple[str, Outcome | None]]]
"""Computes cells somewhere; yields each key when its cell is sent out, with None, and when it has ended."""


def compute(config: Mapping[str, Any], progress: Progress = silent) -> Computed:
    """Compute a cell; what goes wrong in it is in what is returned.

    Raises:
        InputError: the configuration is invalid.
    """
    scenario = made(config)
    try:
        scenario.check()
        with float32_on_cpu(), _turn(scenario), counting_layers() as count:
            begun_s = time.monotonic()
            outcome = scenario.run(with_reason(progress, count) if scenario.emulated else progress)
            seconds = time.monotonic() - begun_s
        text = outcome.timeline().encode() if outcome.timeline else b""
        timeline = gzip.compress(text, 6, mtime=0) if text else b""
        record = _with_timeline(outcome.record) if timeline else outcome.record
        record.to_json()  # here, and not where all records are stored; it names a number that is not finite
        return Computed(record, outcome.rounds, outcome.answers, timeline, seconds)
    except (Exception, SystemExit) as wrong:  # whatever a cell does fails that cell alone
        heed()
        return Computed(scenario.failure_record(traceback.format_exc()), error=_sentence(wrong))


@contextmanager
def float32_on_cpu() -> Iterator[None]:
    """Within the block torch makes float32 tensors on the CPU, whatever the process has set before."""
    torch = sys.modules.get("torch")
    if torch is None:  # nobody can have set anything
        yield
        return
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    torch.set_default_dtype(torch.float32)
    if device.type != "cpu":
        torch.set_default_device("cpu")
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        if device.type != "cpu":
            torch.set_default_device(device)


def _turn(scenario: Scenario) -> AbstractContextManager[Any]:
    """Cells on the wall clock run one at a time, across processes."""
    return nullcontext() if scenario.emulated else one_at_a_time("wall-clock")


def with_reason(progress: Progress, count: LayerCount) -> Progress:
    """Progress whose stages say that they take long because a cell finds nothing of it in a cache."""

    def tell_reason(stage: str, done: int, total: int) -> None:
        computes = count.layers and not stage.startswith("computing")
        progress(f"{stage}, computing what neither cache nor pack has," if computes else stage, done, total)

    return tell_reason


def _with_timeline(record: Record) -> Record:
    """A record that names its timeline, below the folder of outputs."""
    path = f"timelines/{record.experiment}/{record.labels['method']}-{record.key[:12]}.json.gz"
    return replace(record, provenance=replace(record.provenance, trace=path))


def _sentence(wrong: BaseException) -> str:
    if isinstance(wrong, PermissionError) and wrong.filename:
        return file_error(wrong)
    return str(wrong) if isinstance(wrong, InputError) else f"{type(wrong).__name__}: {wrong}"


def _not_stored(outcome: Computed, wrong: BaseException) -> Computed:
    """A failed cell in place of one that could not be stored, as the error that is being handled says."""
    provenance = replace(outcome.record.provenance, trace=None)
    error = portable_text(traceback.format_exc())
    record = replace(
        outcome.record, status="failed", values={}, uncertainty={}, provenance=provenance, error=error
    )
    return Computed(record, error=_sentence(wrong))


def _announce(cells: Iterable[PlannedCell], watcher: Watcher) -> Iterator[PlannedCell]:
    """The cells; `watched` has each as soon as it is planned."""
    for cell in cells:
        watcher.add(cell.labels)
        yield cell


def group_by_load(cells: Iterable[PlannedCell]) -> Iterator[PlannedCell]:
    """The cells; among `PLANNED_AHEAD` of them, those that load the same follow one another."""
    cell_iterator = iter(cells)
    window = [*islice(cell_iterator, PLANNED_AHEAD)]
    loads: tuple[str, ...] = ()
    while window:
        index = next((i for i, cell in enumerate(window) if cell.loads == loads), 0)
        cell = window.pop(index)
        loads = cell.loads
        yield cell
        window.extend(islice(cell_iterator, 1))


def warn_of_edits(cell: Scenario, record: Record) -> None:
    """Warn where a component that is not ours was edited after it made a stored record."""
    stored_sources = record.provenance.own_sources
    edits = [name for name, source in cell.own_sources.items() if stored_sources.get(name, source) != source]
    if edits:
        warn(
            f"the source of {' and '.join(edits)} was edited after the stored result {record.key[:12]}, "
            "which is shown; sweep=force computes it again, and a raised `version` makes it another cell"
        )


def checked_mode(mode: object) -> str:
    """The mode of a sweep; InputError for an unknown one."""
    if str(mode) not in SWEEP_MODES:
        raise InputError(unknown("sweep mode", str(mode), SWEEP_MODES))
    return str(mode)


def shared_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a sweep has once, for all its cells."""
    folders = {name: from_home(config[name]) for name in FOLDER_SETTINGS}
    return folders | {"sweep": config["sweep"], "wandb": config["wandb"]}


class Sweep:
    """One run of the command: its mode, its output folders and its console.

    `tracked` is the wandb run of the last cell that was computed; `None` without one.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        console: Console | None = None,
        group: str = "",
        cell_count: int | None = None,
    ) -> None:
        """Read the run's settings; InputError for an unknown setting or mode, or a place that is none.

        Of a sweep, `group` is the name for wandb and `cell_count` their number.
        """
        check_known(config)
        check_places(config)
        self.mode = checked_mode(config["sweep"])
        self.results = Path(from_home(config["results"]))
        self.store = open_results(self.results)
        self.outputs = Path(from_home(config["outputs"]))
        self.tracker = Tracker.parse(config["wandb"], self.outputs, cell_count)
        self.console = console or Console()
        self.tracked: Path | None = None
        self.group = group
        self._notes: dict[str, Note] = {}
        self._checked = -CHECK_S
        self._shared = shared_settings(config)

    @cached_property
    def _by_settings(self) -> RecordsBySettings:
        return RecordsBySettings(self.store)

    @cached_property
    def _finished_keys(self) -> frozenset[str]:
        """The keys that had a finished record when the sweep began."""
        return self.store.finished_keys()

    def run(self, cells: Iterable[PlannedCell], watcher: Watcher, engine: Engine | None = None) -> None:
        """Run cells, here or with an engine; what comes of them goes to `watched`.

        Whatever goes wrong in a cell fails that cell alone.

        Raises:
            InputError: of a table without cells, of wandb if a cell has to be computed, or of an engine that
                cannot run any cell.
        """
        waiting_cells: dict[str, list[PlannedCell]] = {}  # each with the equal ones that wait for it

        def compute_locally(to_compute: Iterator[Cell]) -> Iterator[tuple[str, Outcome | None]]:
            for key, config in to_compute:
                yield key, None
                yield key, compute(config, partial(watcher.tell, waiting_cells[key][0].number))

        for key, outcome in (engine or compute_locally)(self._to_compute(cells, watcher, waiting_cells)):
            first_cell = waiting_cells[key][0]
            if outcome is None:
                self.store.begin(key)
                watcher.tell(first_cell.number)
                continue
            note = self._note_of(key, first_cell.labels, outcome)
            self._notes[key] = note
            watcher.finish(first_cell.number, replace(note, chosen=first_cell.chosen))
            for cell in waiting_cells.pop(key)[1:]:
                watcher.finish(cell.number, _like(note, cell))

    def _to_compute(
        self, cells: Iterable[PlannedCell], watcher: Watcher, waiting_cells: dict[str, list[PlannedCell]]
    ) -> Iterator[Cell]:
        """The cells that have to be computed, then `out`; all others end, or wait for an equal one."""
        for cell in group_by_load(_announce(cells, watcher)):
            note_or_scenario = self._note_or_scenario(cell)
            if isinstance(note_or_scenario, Note):
                watcher.finish(cell.number, replace(note_or_scenario, chosen=cell.chosen))
                continue
            cell = replace(cell, labels=note_or_scenario.labels)
            if note_or_scenario.key in waiting_cells:
                waiting_cells[note_or_scenario.key].append(cell)
            elif note := self._notes.get(note_or_scenario.key):
                watcher.finish(cell.number, _like(note, cell))
            else:
                self.tracker.check()
                waiting_cells[note_or_scenario.key] = [cell]
                yield note_or_scenario.key, note_or_scenario.config

    def _note_or_scenario(self, cell: PlannedCell) -> Note | Scenario:
        """The note of a cell that is not to be computed, or its scenario.

        Raises:
            InputError: of a table without cells.
        """
        if cell.table is not None and cell.config is not None:
            show_files(self.console, self.read(str(cell.config["name"]), cell.table))
            return Note("", dict(cell.labels), "written")
        try:
            if cell.config is None:
                raise InputError(cell.error)
            check_known(cell.config)
            check_places(cell.config)
            self._require_shared(cell.config)
            scenario = made(cell.config)
            return self._stored_note(scenario, self._finished_keys) or scenario
        except (InputError, OmegaConfBaseException) as wrong:
            state = "invalid" if self.mode == "list" and cell.config is not None else "failed"
            return Note("", dict(cell.labels), state, error=" ".join(str(wrong).split()))
        except (Exception, SystemExit) as wrong:  # neither cell nor input foresees it: there is no record
            heed()
            traceback.print_exc()
            return Note("", dict(cell.labels), "failed", error=f"{type(wrong).__name__}: {wrong}")

    def _require_shared(self, config: Mapping[str, Any]) -> None:
        """InputError for a cell with places, a mode or tracking other than its sweep's, which are used."""
        for name, value in shared_settings(config).items():
            if value != (sweep_value := self._shared[name]):
                raise InputError(
                    f"{name} is {value!r} for this cell and {sweep_value!r} for its sweep, whose cells lie "
                    "together; give one for all, or run a command for each"
                )

    def _note_of(self, key: str, labels: Mapping[str, str], outcome: Outcome) -> Note:
        """The note of a cell that has ended, whose outcome is stored."""
        if isinstance(outcome, Lost):
            return Note(key, dict(labels), "lost", error=str(outcome))
        if isinstance(outcome, str):
            return Note("", dict(labels), "failed", error=outcome)
        try:
            record = self._write(outcome)
        except (Exception, SystemExit) as wrong:  # such as a full disk: the sweep goes on
            heed()
            if not outcome.error:
                return self._note_of(key, labels, _not_stored(outcome, wrong))
            error = outcome.error if str(wrong) == outcome.error else f"{outcome.error}; {wrong}"
            return Note(key, dict(labels), "failed", error=error)
        return Note(key, dict(labels), record.status, outcome.seconds, outcome.error)

    def cell(self, config: Mapping[str, Any], progress: Progress = silent) -> Note:
        """Process one cell of a resolved configuration. A failed cell gets a record with its traceback.

        Raises:
            InputError: no record can be made: the configuration is invalid, or the disk is not writable.
        """
        scenario = made(config)
        if self.mode != "list":
            self.tracker.check()  # before a checkpoint is fetched for the key
        if note := self._stored_note(scenario):
            return note
        self.store.begin(scenario.key)
        return self._note_of(scenario.key, scenario.labels, compute(config, progress))

    def _stored_note(self, cell: Scenario, finished: frozenset[str] = frozenset()) -> Note | None:
        """The note of a cell that is not to be computed: listed, done, or never tried and only others are.

        Args:
            cell: what is looked up.
            finished: keys of records that are known to be finished, which need not be read.

        Raises:
            InputError: records cannot be stored, or one is damaged.
        """
        if self.mode == "list":
            return self._list_note(cell)
        is_unread = self.mode != "force" and not self.tracker.again and not cell.own_sources
        if is_unread and cell.key in finished:
            return Note(cell.key, cell.labels, "cached", 0.0)
        record = self.store.get(cell.key)
        is_valid = record is not None and record.done and self.mode != "force"
        if not is_valid or self.tracker.again:
            self._check_writable()
        if record and is_valid:
            warn_of_edits(cell, record)
            if self.tracker.again:
                self._track(record)
            return Note(cell.key, cell.labels, "cached", 0.0)
        if self.mode == "retry" and record is None and not self.store.has_begun(cell.key):
            return Note(cell.key, cell.labels, "skipped")
        return None

    def _check_writable(self) -> None:
        """InputError if what a cell makes cannot be written: a disk fills while others are computed."""
        if time.monotonic() - self._checked >= CHECK_S:
            self.store.check_writable(FREE_BYTES)
            try:
                self.outputs.mkdir(parents=True, exist_ok=True)
            except OSError as wrong:
                raise InputError(file_error(wrong)) from wrong
            self._checked = time.monotonic()

    def _list_note(self, cell: Scenario) -> Note:
        record = self._by_settings.record_like(cell)
        if record and record.done:
            return Note(record.key, cell.labels, "done")
        return Note(record.key if record else "", cell.labels, record.status if record else "todo")

    def _write(self, outcome: Computed) -> Record:
        """Write a cell's files; the timeline first, since the record refers to it."""
        record = outcome.record
        path = self.outputs / str(record.provenance.trace) if outcome.timeline else None
        try:
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, outcome.timeline)
            self.store.put(record, outcome.rounds, answers=outcome.answers)
        except OSError as wrong:
            reason = f"{wrong.strerror}; earlier records are whole"
            raise InputError(f"the cell {record.labels['method']} could not be written: {reason}") from wrong
        self.tracked = self.tracker.cell(record, outcome.rounds, path, outcome.answers, self.group)
        return record

    def _track(self, record: Record) -> None:
        """Write the wandb run of a record again."""
        trace = self.outputs / record.provenance.trace if record.provenance.trace else None
        rounds, answers = self.store.rounds(record.key), self.store.answers(record.key)
        timeline = trace if trace and trace.exists() else None
        self.tracked = self.tracker.cell(record, rounds, timeline, answers, self.group)

    def finish(self, asked: Asked, spec: TableSpec | None, notes: list[Note]) -> dict[str, Path]:
        """Print the summary; pack these cells in the table's folder and build it, with its earlier cells."""
        self.console.print(summary(notes, self.mode))
        if self.mode == "list":
            self.console.print(describe_rest(notes))
        if self.mode == "list" or not spec:
            return {}
        all_members = [Member(note.key, note.labels, asked.overrides) for note in notes if note.key]
        stored_members = [member for member in all_members if self.store.get(member.key)]
        stored_keys = {member.key for member in stored_members}  # made of today's versions, all of them
        if not stored_members:
            return {}
        members.require_apart(stored_members)
        is_full_sweep = asked.whole and len(stored_members) == len(notes)
        with self.store.lock():  # a sweep of the same table must not read between our reading and writing
            cells = members.join(stored_members, self.store.members(asked.folder), is_full_sweep)
            table_spec, records = asked.spec(spec), self.store.records(cells)
            older = older_keys(record for record in records if record.key not in stored_keys)
            samples = Samples(self.store)
            table = made_table(asked, table_spec, cells, records, older, samples, root=self.results)
            self._set_members(asked.folder, cells)
            table_page = page(table)
            files = write_all(table, self.results, load_bibliography(), made_page=table_page)
            files |= self._timeline(table_spec, table, records)
            update_index(self.store)
        self.console.print(to_screen(table_page))
        sweep_records = [record for record in records if record.key in stored_keys]
        run_folder = self.tracker.sweep(self.group or asked.folder, table, files, sweep_records)
        files |= self._timelines(sweep_records)
        if run_folder:
            files["wandb"] = run_folder
        return files

    def _set_members(self, folder: str, cells: Sequence[Member]) -> None:
        try:
            self.store.set_members(folder, cells)
        except OSError as wrong:
            reason = f"{wrong.strerror}; all records are whole"
            raise InputError(f"the cells of {folder} could not be listed: {reason}") from wrong

    def _timelines(self, records: Sequence[Record]) -> dict[str, Path]:
        """The cells' timelines by what tells the cells apart; of many only their folder."""
        names = varying(records) or ["method"]
        traces = {
            " ".join(["timeline", *(record.labels.get(name, "") for name in names)]): record.provenance.trace
            for record in records
            if record.provenance.trace
        }
        if len(traces) > MOST_TIMELINES:
            return {"timelines": self.outputs / os.path.commonpath(traces.values())}
        return {name: self.outputs / trace for name, trace in traces.items()}

    def read(self, experiment: str, section: Mapping[str, Any]) -> dict[str, Path]:
        """Write and print the table of a section without cells."""
        table_page, files = write_read(experiment, section, self.store, Samples(self.store))
        update_index(self.store)
        self.console.print(to_screen(table_page))
        return files

    def _timeline(self, spec: TableSpec, table: Table, records: list[Record]) -> dict[str, Path]:
        """Draw the experiment's timeline, if it has one; an InputError is printed and the table kept."""
        if spec.timeline is None:
            return {}
        from repro.reports.figures.timeline import select_record, write_timeline  # late, with matplotlib

        try:
            rounds = self.store.rounds(select_record(spec.timeline, records).key)
            return write_timeline(table, spec.timeline, records, rounds, self.results, self.outputs)
        except InputError as wrong:
            self.console.print(f"No timeline: {wrong}", style="red")
            return {}


def _like(note: Note, cell: PlannedCell) -> Note:
    """The note of a cell that is equal to one that has ended."""
    state = "cached" if note.state == "done" else note.state
    return replace(note, labels=dict(cell.labels), state=state, chosen=cell.chosen)


def summary(notes: list[Note], mode: str) -> Grid:
    """The cells of a sweep as a grid: what varies, state, measured time, the key's beginning.

    Of more than `MOST_ROWS` those alone that are not done, and no more than that.
    """
    labels = [name for name in notes[0].labels if len({note.labels.get(name) for note in notes}) > 1]
    label_sets = {tuple(note.labels.get(name) for name in labels) for note in notes}
    settings = dict.fromkeys(key for note in notes for key in note.chosen)
    if len(label_sets) == len(notes):  # the labels tell the cells apart already
        settings = {}
    varied_settings = [key for key in settings if len({str(note.chosen.get(key)) for note in notes}) > 1]
    columns = labels or ([] if varied_settings else ["method"])
    last_columns = ["error"] if any(note.error for note in notes) else []
    last_columns = last_columns if mode == "list" else ["took"]
    grid = Grid(*columns, *varied_settings, "state", *last_columns, "key", title=f"{len(notes)} cells")
    listed_notes = notes
    if len(notes) > MOST_ROWS:
        listed_notes = [note for note in notes if note.state not in ("done", "cached", "written")]
        grid.title = f"{len(notes)} cells, of which {len(listed_notes)} are not done"
    for note in listed_notes[:MOST_ROWS]:
        duration = "" if note.seconds is None else in_words(note.seconds)
        values = [note.labels.get(name, "") for name in columns]
        values += [str(note.chosen.get(key, "")) for key in varied_settings]
        grid.add_row(*values, note.state, *[note.error or duration for _ in last_columns], note.key[:12])
    return grid


def describe_rest(notes: list[Note]) -> str:
    """The number of cells to do."""
    todo_count = sum(note.state in ("todo", "failed") for note in notes)
    done_count = sum(note.state == "done" for note in notes)
    return (
        f"{todo_count} of {len(notes)} cells to do"
        if todo_count
        else f"{done_count} of {len(notes)} cells done"
    )
