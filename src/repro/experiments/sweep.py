"""Sweeps: find cached cells, run and store the others, and build the table at the end.

Must not know Hydra. Each cell writes a note with its key to the sweep's folder, whichever process ran it, so
that the end of the sweep finds all cells (`experiments.progress`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from repro.core.errors import InputError, warn
from repro.core.paths import conf_dir, from_home
from repro.core.registry import unknown
from repro.experiments.cell_settings import RecordsBySettings
from repro.experiments.computing import Computed, Showing, computed, not_stored
from repro.experiments.summaries.notes import Note, in_words
from repro.experiments.tables import Asked, made_table, older_keys, update_index
from repro.experiments.tracking.tracker import Tracker
from repro.models.costs.model_cost import PRECISIONS
from repro.records.packed import Member
from repro.records.record import Record, write_atomically
from repro.records.results import Results, open_results
from repro.reports.claims.claims import ClaimsSpec, claims_written_out
from repro.reports.claims.claims_page import write_claims
from repro.reports.files import FORMATS, write_all
from repro.reports.formats.layout import Page, page
from repro.reports.formats.render import MOST_ROWS, to_screen
from repro.reports.hardware_facts.facts import FactsSpec, Sources, facts_written_out, read_settings
from repro.reports.intervals.samples import Samples
from repro.reports.reference.bibliography import load_bibliography
from repro.reports.reference.names import OF_STAND_INS
from repro.reports.reference.reference import load_cells
from repro.reports.spec.expand import expand, with_notes
from repro.reports.spec.experiment import experiment_file
from repro.reports.spec.spec import TableSpec
from repro.reports.tables import members
from repro.reports.tables.aggregate import varying
from repro.reports.tables.table import Table
from repro.reports.tree_drawings.forms import DiagramsSpec
from repro.scenarios.base import Progress, Scenario, silent
from repro.scenarios.registry import made
from repro.scenarios.sections import check_known, check_places

MODES = ("run", "list", "retry", "force")
MANY = 8
"""Timelines above which a sweep names their folder instead of each."""

NEED = 20_000_000
"""Bytes that must be free before a cell starts; its record, rounds and timeline take far less."""

CHECK_S = 1.0
"""How often it is checked at most that records can be stored."""


def unseen() -> AbstractContextManager[Progress]:
    """A progress callback that shows nothing."""
    return nullcontext(silent)


def warn_of_edits(cell: Scenario, record: Record) -> None:
    """Warn where a component that is not ours was edited after it made a stored record."""
    before = record.provenance.own_sources
    edited = [name for name, source in cell.own_sources.items() if before.get(name, source) != source]
    if edited:
        warn(
            f"the source of {' and '.join(edited)} was edited after the stored result {record.key[:12]}, "
            "which is shown; sweep=force computes it again, and a raised `version` makes it another cell"
        )


def checked_mode(mode: object) -> str:
    """The mode of a sweep; InputError for an unknown one."""
    if str(mode) not in MODES:
        raise InputError(unknown("sweep mode", str(mode), MODES))
    return str(mode)


class Sweep:
    """One run of the command: its mode, its output folders and its console.

    `tracked` is the wandb run of the last cell that was computed; `None` without one.
    """

    def __init__(self, config: Mapping[str, Any], console: Console | None = None) -> None:
        """Read the run's settings; InputError for an unknown setting or mode, or a place that is none."""
        self.require_known(config)
        self.mode = checked_mode(config["sweep"])
        self.results = Path(from_home(config["results"]))
        self.store = open_results(self.results)
        self.outputs = Path(from_home(config["outputs"]))
        self.tracker = Tracker.parse(config["wandb"], self.outputs)
        self.console = console or Console()
        self.tracked: Path | None = None
        self._left: dict[Path, list[str]] = {}
        self._checked = -CHECK_S

    @staticmethod
    def require_known(config: Mapping[str, Any]) -> None:
        """InputError for an unknown setting, or a place that is none."""
        check_known(config)
        check_places(config)

    @cached_property
    def _by_settings(self) -> RecordsBySettings:
        return RecordsBySettings(self.store)

    def cell(
        self, config: Mapping[str, Any], showing: Showing = unseen, cell: Scenario | None = None
    ) -> Note:
        """Process one cell according to the mode. A failed cell gets a record with its traceback.

        Of several processes that ask for one cell, one computes it and the others wait for its record.

        Args:
            config: its resolved configuration.
            showing: opens its progress callback.
            cell: what was made of `config`, if it was.

        Raises:
            InputError: no record can be made: the configuration is invalid, or the disk is not writable.
        """
        cell = cell or made(config)
        if self.mode == "list":
            return self._listed(cell)
        if note := self.known(cell):
            return note
        known = self.store.get(cell.key)
        with self.store.alone(cell.key):
            newer = self.store.get(cell.key)
            if newer and newer.done and newer != known:
                return Note(cell.key, cell.labels, "cached", 0.0)
            self.store.begin(cell.key)
            return self.keep(cell.labels, computed(cell, config, showing))

    def known(self, cell: Scenario) -> Note | None:
        """The note of a cell that is not to be run: it is done, or was never tried and only others are.

        Raises:
            InputError: records cannot be stored, or one is damaged.
        """
        if time.monotonic() - self._checked >= CHECK_S:
            self.store.check_writable(NEED)
            self.tracker.check()
            self._checked = time.monotonic()
        record = self.store.get(cell.key)
        if record and record.done and self.mode != "force":
            warn_of_edits(cell, record)
            if self.tracker.again:
                self._track(record)
            return Note(cell.key, cell.labels, "cached", 0.0)
        if self.mode == "retry" and record is None and not self.store.has_begun(cell.key):
            return Note(cell.key, cell.labels, "skipped")
        return None

    def keep(self, labels: Mapping[str, str], outcome: Computed) -> Note:
        """Store what came of a cell with these labels. What cannot be stored fails the cell."""
        key = outcome.record.key
        try:
            record = self._write(outcome)
        except (Exception, SystemExit) as wrong:  # such as a full disk: the sweep goes on
            if not outcome.error:
                return self.keep(labels, not_stored(outcome, wrong))
            told = outcome.error if str(wrong) == outcome.error else f"{outcome.error}; {wrong}"
            return Note(key, dict(labels), "failed", error=told)
        return Note(key, dict(labels), record.status, outcome.seconds, outcome.error)

    def _listed(self, cell: Scenario) -> Note:
        known = self._by_settings.like(cell)
        if known and known.done:
            return Note(known.key, cell.labels, "done")
        return Note(known.key if known else "", cell.labels, known.status if known else "todo")

    def _write(self, outcome: Computed) -> Record:
        """Write a cell's files; the timeline first, since the record refers to it."""
        record = outcome.record
        shown = self.outputs / str(record.provenance.trace) if outcome.timeline else None
        try:
            if shown:
                shown.parent.mkdir(parents=True, exist_ok=True)
                self._remove_left(shown)
                write_atomically(shown, outcome.timeline)
            self.store.put(record, outcome.rounds, answers=outcome.answers)
        except OSError as wrong:
            reason = f"{wrong.strerror}; earlier records are whole"
            raise InputError(f"the cell {record.labels['method']} could not be written: {reason}") from wrong
        self.tracked = self.tracker.cell(record, outcome.rounds, shown, outcome.answers)
        return record

    def _remove_left(self, path: Path) -> None:
        """Remove what a killed writer left of a file that nobody else writes; a folder is listed once."""
        if path.parent not in self._left:
            left = [name for name in os.listdir(path.parent) if name.endswith(".tmp")]
            self._left[path.parent] = left
        for name in self._left[path.parent]:
            if name.startswith(f"{path.name}."):
                (path.parent / name).unlink(missing_ok=True)

    def _track(self, record: Record) -> None:
        """Write the wandb run of a record again."""
        trace = self.outputs / record.provenance.trace if record.provenance.trace else None
        rounds, answers = self.store.rounds(record.key), self.store.answers(record.key)
        self.tracked = self.tracker.cell(record, rounds, trace if trace and trace.exists() else None, answers)

    def finish(self, asked: Asked, spec: Mapping[str, Any] | None, notes: list[Note]) -> dict[str, Path]:
        """Print the summary; pack these cells in the table's folder and build it, with its earlier cells."""
        self.console.print(summary(notes, self.mode))
        if self.mode == "list":
            self.console.print(left(notes))
        if self.mode == "list" or not spec:
            return {}
        found = [Member(note.key, note.labels, asked.overrides) for note in notes if note.key]
        own = [member for member in found if self.store.get(member.key)]
        own_keys = {member.key for member in own}  # made of today's versions, all of them
        if not own:
            return {}
        members.require_apart(own)
        whole = asked.whole and len(own) == len(notes)
        with self.store.locked():  # a sweep of the same table must not read between our reading and writing
            cells = members.join(own, self.store.members(asked.folder), whole)
            parsed, records = asked.spec(spec), self.store.records(cells)
            older = older_keys(record for record in records if record.key not in own_keys)
            samples = Samples(self.store)
            table = made_table(asked, spec, cells, records, older, samples, root=self.results)
            self._pack(asked.folder, cells)
            files = write_all(table, self.results, load_bibliography())
            files |= self._timeline(parsed, table, records)
            update_index(self.store)
        self.console.print(to_screen(page(table)))
        swept = [record for record in records if record.key in own_keys]
        tracked = self.tracker.sweep(table, files, swept)
        files |= self._timelines(swept)
        if tracked:
            files["wandb"] = tracked
        return files

    def _pack(self, folder: str, cells: Sequence[Member]) -> None:
        try:
            self.store.pack(folder, cells)
        except OSError as wrong:
            reason = f"{wrong.strerror}; all records are whole"
            raise InputError(f"the cells of {folder} could not be packed: {reason}") from wrong

    def _timelines(self, own: Sequence[Record]) -> dict[str, Path]:
        """The cells' timelines by what tells the cells apart; of many only their folder."""
        names = varying(own) or ["method"]
        found = {
            " ".join(["timeline", *(record.labels.get(name, "") for name in names)]): record.provenance.trace
            for record in own
            if record.provenance.trace
        }
        if len(found) > MANY:
            return {"timelines": self.outputs / os.path.commonpath(found.values())}
        return {name: self.outputs / trace for name, trace in found.items()}

    def read(self, experiment: str, section: Mapping[str, Any]) -> dict[str, Path]:
        """Write and print the table of a section without cells."""
        shown, files = write_read(experiment, section, self.store, Samples(self.store))
        update_index(self.store)
        self.console.print(to_screen(shown))
        return files

    def _timeline(self, spec: TableSpec, table: Table, records: list[Record]) -> dict[str, Path]:
        """Draw the experiment's timeline, if it has one; an InputError is printed and the table kept."""
        if spec.timeline is None:
            return {}
        from repro.reports.figures.timeline import chosen, write_timeline  # late, with matplotlib

        try:
            rounds = self.store.rounds(chosen(spec.timeline, records).key)
            return write_timeline(table, spec.timeline, records, rounds, self.results, self.outputs)
        except InputError as wrong:
            self.console.print(f"No timeline: {wrong}", style="red")
            return {}


def computes_nothing(section: Mapping[str, Any]) -> bool:
    """Whether a `table:` section has claims, facts or drawings, and so no cells."""
    return not {"claims", "facts", "trees", "masks"}.isdisjoint(section)


def written_out(experiment: str, section: Mapping[str, Any]) -> dict[str, Any]:
    """A `table:` section as its parser reads it, with rows, columns, published values and footnotes."""
    if computes_nothing(section):
        written = with_notes(section)
        if notes := written.get("footnotes"):
            written["footnotes"] = [note.removeprefix(OF_STAND_INS) for note in notes]
        if "claims" in written:
            return claims_written_out(experiment, written)
        return facts_written_out(written) if "facts" in written else written
    return expand(experiment, section, experiment_file(experiment))


def write_read(
    experiment: str,
    section: Mapping[str, Any],
    results: Results,
    samples: Samples,
    out: Path | None = None,
    formats: Collection[str] = tuple(FORMATS),
) -> tuple[Page, dict[str, Path]]:
    """Write a page of claims (compared with tables), facts (compared with device files) or tree drawings.

    Args:
        experiment: its name.
        section: its `table:` section.
        results: have the cells behind the tables.
        samples: of these results.
        out: the folder of the page, and of the tables that claims are compared with; default the results'.
        formats: of the page.

    Raises:
        InputError: the section is malformed or refers to something unknown, or the folder is not writable.
    """
    bibliography, folder = load_bibliography(), out or results.root
    if "claims" in section:
        from repro.experiments.recorded_tables import recorded_table  # late, as it composes experiments
        from repro.reports.claims.committed_draws import CommittedDraws

        spec = ClaimsSpec.parse(experiment, section)
        draws = CommittedDraws(results, samples, lambda table: recorded_table(table, results).spec)
        return write_claims(spec, folder, load_cells(), bibliography, formats, draws)
    if "facts" not in section:
        from repro.experiments.tree_drawings import form  # late, with torch, numba and matplotlib
        from repro.reports.tree_drawings.forms_page import write_forms

        drawn = DiagramsSpec.parse(experiment, section)
        forms = [None if one.lookahead else form(one) for one in (*drawn.trees, *drawn.masks)]
        return write_forms(drawn, forms, folder, bibliography, formats)
    from repro.reports.hardware_facts.facts_page import write_facts  # late, with matplotlib

    return write_facts(FactsSpec.parse(experiment, section), folder, fact_sources(), bibliography, formats)


def fact_sources() -> Sources:
    """The project's reference values, settings, device files and precisions."""
    bits = {name: precision.bits for name, precision in PRECISIONS.items()}
    settings = read_settings(conf_dir() / "reference" / "settings.csv")
    return Sources(load_cells(), settings, conf_dir() / "device", bits)


def summary(notes: list[Note], mode: str) -> Grid:
    """The cells of a sweep as a grid: what varies, state, measured time, the key's beginning.

    Of more than `MOST_ROWS` those alone that are not done, and no more than that.
    """
    labels = [name for name in notes[0].labels if len({note.labels.get(name) for note in notes}) > 1]
    told = {tuple(note.labels.get(name) for name in labels) for note in notes}
    settings = dict.fromkeys(key for note in notes for key in note.chosen)
    if len(told) == len(notes):  # the labels tell the cells apart already
        settings = {}
    varied = [key for key in settings if len({str(note.chosen.get(key)) for note in notes}) > 1]
    shown = labels or ([] if varied else ["method"])
    about = ["error"] if any(note.error for note in notes) else []
    about = about if mode == "list" else ["took"]
    grid = Grid(*shown, *varied, "state", *about, "key", title=f"{len(notes)} cells")
    counted = notes
    if len(notes) > MOST_ROWS:
        counted = [note for note in notes if note.state not in ("done", "cached", "written")]
        grid.title = f"{len(notes)} cells, of which {len(counted)} are not done"
    for note in counted[:MOST_ROWS]:
        took = "" if note.seconds is None else in_words(note.seconds)
        values = [note.labels.get(name, "") for name in shown]
        values += [str(note.chosen.get(key, "")) for key in varied]
        grid.add_row(*values, note.state, *[note.error or took for _ in about], note.key[:12])
    return grid


def left(notes: list[Note]) -> str:
    """The number of cells to do."""
    todo = sum(note.state in ("todo", "failed") for note in notes)
    done = sum(note.state == "done" for note in notes)
    return f"{todo} of {len(notes)} cells to do" if todo else f"{done} of {len(notes)} cells done"
