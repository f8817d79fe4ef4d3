"""wandb: a finished run for each cell, and one for each sweep that is open while its cells run.

A dashboard beside the records, which are the archive. wandb reads its own variables and files; it is imported
when a run is checked or written, and its errors are logged and lose no record. Must not know how cells are
computed.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from repro.core.errors import InputError
from repro.core.paths import from_home
from repro.core.registry import require_choice
from repro.core.typed import typed
from repro.experiments.tracking import contents
from repro.records.record import Record, Round, Scalar, content_hash
from repro.reports.tables.table import Table

if TYPE_CHECKING:
    from wandb import Run

MODES = ("online", "offline", "disabled")
MOST_RUNS = 100
"""Cells of a sweep up to which each gets a run; one takes 0.12 s of CPU time."""
LONGEST_TAG, LONGEST_GROUP = 64, 128
"""Characters that wandb accepts."""
KEY, FAILED = 12, "-failed"
"""Digits of the key in a run's id, and the end of a failed run's id."""
NAMED = ("method", "device", "dataset")
"""Labels that a run's name begins with; those of a model or of its agreement are not in it."""
UNNAMED = ("target", "draft", "agreement")
NO_NETWORK = (
    "wandb could not write the run %r of %r (%s); all records are kept, and this command tries no other run; "
    "the same command with wandb.again=true writes them, once there is network"
)
T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunSpec:
    """A run that shall be written.

    Attributes:
        key: hexadecimal digits of what it shows; a later run with the same key takes its place.
        name: display name.
        group: the sweep that it belongs to.
        kind: `cell` or `sweep`.
        tags: what dashboards filter by.
        config: settings, flat.
        failed: whether it ends as a failed run.
    """

    key: str
    name: str
    group: str
    kind: str
    tags: tuple[str, ...]
    config: Mapping[str, Any]
    failed: bool = False

    @property
    def id(self) -> str:
        """The run's id, by which its folder ends: words of its name and the key.

        A failed run has an id of its own, since a failed cell never takes the place of a finished one.
        """
        words = re.sub(r"[^A-Za-z0-9]+", "-", self.name).strip("-")[:60]
        return f"{words}-{self.key[:KEY]}{FAILED if self.failed else ''}"

    def remove_earlier(self, folder: Path) -> None:
        """Remove folders of earlier runs that this one takes the place of."""
        for end in [FAILED] if self.failed else ["", FAILED]:
            for earlier in [*folder.glob(f"*run-*-{self.key[:KEY]}{end}")]:
                shutil.rmtree(earlier, ignore_errors=True)


@dataclass(frozen=True)
class Tracker:
    """Writes runs; does nothing if the mode is `disabled`. What is None is wandb's own variable or file.

    Offline runs are complete on disk: `wandb leet` shows them, `wandb sync` uploads them later.

    Attributes:
        mode: offline, online or disabled; null is wandb's own, else offline.
        project: of all runs; null is WANDB_PROJECT, else repro.
        entity: user or team that they belong to; null is WANDB_ENTITY, else the login's own.
        tags: of all runs, beside method, device, dataset and weights; null is WANDB_TAGS.
        notes: a note for all runs; null is WANDB_NOTES.
        cells: whether cells that are computed get runs; that of their sweep has a row for each anyway. Null
            is all but those of sweeps of more than 100 cells.
        again: whether cells that were done before get their runs again, from their records.
        dir: runs lie in its folder wandb; null is WANDB_DIR, else outputs.
        outputs: the folder of outputs.
    """

    mode: str | None = None
    project: str | None = None
    entity: str | None = None
    tags: tuple[str, ...] | None = None
    notes: str | None = None
    cells: bool | None = None
    again: bool = False
    dir: str | None = None
    outputs: Path = Path("outputs")
    _open: dict[str, Any] = field(default_factory=dict, init=False)
    _states: list[str] = field(default_factory=list, init=False)
    _unreachable: list[str] = field(default_factory=list, init=False)

    @classmethod
    def parse(cls, section: Mapping[str, Any], outputs: Path) -> Tracker:
        """Read the section `wandb` of a configuration.

        Raises:
            InputError: a setting is unknown or malformed.
        """
        settings = {str(name): value for name, value in section.items() if value is not None}
        tracker = replace(typed(cls, settings, "wandb"), outputs=outputs)
        if tracker.mode is not None:
            require_choice("wandb mode", tracker.mode, MODES)
        for name in ("project", "entity", "dir"):
            text = getattr(tracker, name)
            if text is not None and not text.strip():
                raise InputError(f"wandb.{name} is {text!r}; it must be a name, or null")
        if tracker.again and tracker.mode == "disabled":
            raise InputError(
                "wandb.again writes runs, and the wandb mode is disabled; choose offline or online"
            )
        if under_agent() and tracker.cells is not False:  # the agent waits for a run, also of a done cell
            tracker = replace(tracker, again=True)
        return tracker

    def of_sweep(self, cells: int) -> Tracker:
        """That of a sweep of so many cells; under an agent of wandb the sweep's run is the only one."""
        chosen = cells <= MOST_RUNS if self.cells is None else self.cells
        runs, again = (False, False) if under_agent() else (chosen, self.again)
        return self if (runs, again) == (self.cells, self.again) else replace(self, cells=runs, again=again)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """`mode`, `project`, `run_tags` and `root_dir`: the settings, else what wandb's own say, else ours.

        Raises:
            InputError: wandb refuses one.
        """
        if self.mode == "disabled":
            return {"mode": "disabled"}
        import wandb

        ours = {"mode": "offline", "project": "repro", "run_tags": (), "root_dir": str(self.outputs)}
        place = None if self.dir is None else from_home(self.dir)
        settings = {"mode": self.mode, "project": self.project, "run_tags": self.tags, "root_dir": place}
        try:
            theirs = wandb.setup().settings
            wandb.Settings(project=self.project, entity=self.entity)
        except (wandb.Error, ValueError) as wrong:
            raise InputError(f"wandb refuses its settings: {' '.join(str(wrong).split())}") from wrong
        of_wandb = {name: getattr(theirs, name) for name in ours if name in theirs.model_fields_set}
        return ours | of_wandb | {name: value for name, value in settings.items() if value is not None}

    @property
    def folder(self) -> Path:
        """Runs lie in its folder `wandb`."""
        return Path(self.settings["root_dir"])

    def check(self) -> None:
        """Check before the run that wandb runs can be written, so that wandb never prompts.

        Raises:
            InputError: mode `online` without a login, or a folder that cannot be written to.
        """
        if self.settings["mode"] == "disabled":
            return
        place = self.folder
        while not place.exists() and place != place.parent:
            place = place.parent
        if not (place.is_dir() and os.access(place, os.W_OK)):
            raise InputError(
                f"wandb runs cannot lie in {self.folder}: {place} is no folder that can be written to; "
                "choose another wandb.dir, or wandb.mode=disabled"
            )
        if self.settings["mode"] not in ("online", "run"):
            return
        import wandb

        try:
            is_known = wandb.login(prompt=False, verify=False)
        except (wandb.Error, ValueError) as wrong:
            raise InputError(
                f"wandb refuses the login: {' '.join(str(wrong).split())}; wandb.ai/authorize shows a whole "
                "key for WANDB_API_KEY, and wandb.mode=offline needs none"
            ) from wrong
        if not is_known:
            raise InputError(
                "wandb mode 'online' needs WANDB_API_KEY or `wandb login` first; or choose 'offline'"
            )

    def cell(
        self,
        record: Record,
        rounds: Sequence[Round] = (),
        trace: Path | None = None,
        answers: Sequence[Mapping[str, Scalar]] = (),
        group: str = "",
    ) -> Path | None:
        """Write the run of a cell, and what it shows to that of its sweep. A failed cell is a failed run.

        Args:
            record: its figures, config and labels.
            rounds: its lines of detail.
            trace: its timeline.
            answers: what it answered, such as {"prompt": 0, "answer": "...", "target": "...", "score": 1.0}.
            group: its sweep; the experiment for a cell by itself.

        Returns:
            The run's folder; `None` if wandb is disabled or failed (which is logged).
        """

        def fill(run: Run) -> None:
            contents.log_values(run, record)
            contents.log_rounds(run, rounds)
            contents.log_rows(run, "answers", answers)
            if trace is not None:
                contents.log_files(run, f"timeline-{record.key[:12]}", "timeline", [trace])

        if group and (sweep := self._of_sweep(group)):
            self._states.append(record.status)
            self._guarded(lambda: contents.log_progress(sweep, record, self._states), group, group)
        if self.cells is False and not self.again:
            return None
        config, tags = contents.settings_of(record), cell_tags(record)
        group = group or record.experiment
        spec = RunSpec(record.key, run_name(record), group, "cell", tags, config, not record.done)
        return self._guarded(lambda: self._finished(self._opened(spec), fill, spec), spec.name, group)

    def sweep(
        self, group: str, table: Table, files: Mapping[str, Path], records: Sequence[Record] = ()
    ) -> Path | None:
        """Finish the run of a sweep: its table, its pictures and files, and a row for each of its cells.

        Returns as `cell`.
        """

        def fill(run: Run) -> None:
            run.name = f"{table.experiment} table"
            run.config.update(  # type: ignore[no-untyped-call]
                {"command": table.command, "commits": list(table.commits)}
            )
            run.tags = (*(run.tags or ()), *table.papers)
            contents.log_table(run, table)
            contents.log_cells(run, records)
            contents.log_pictures(run, list(files.values()))
            name = re.sub(r"[^\w.-]+", "-", f"table-{table.experiment}")  # what wandb allows in a name
            contents.log_files(run, name, "table", list(files.values()))

        run = self._of_sweep(group)
        self._open.pop(group, None)
        return self._guarded(lambda: self._finished(run, fill), f"{table.experiment} table", group)

    def close(self) -> None:
        """End the runs of sweeps that were interrupted, as failed ones."""
        for group in [*self._open]:
            run = self._open.pop(group)
            if run is not None:
                self._guarded(partial(run.finish, exit_code=1), "table", group)

    def _of_sweep(self, group: str) -> Run | None:
        """The run of a sweep, which is opened with its first cell."""
        if group not in self._open:
            spec = RunSpec(content_hash(group), f"{group} table", group, "sweep", ("sweep",), {})
            self._open[group] = self._guarded(lambda: self._opened(spec), spec.name, group)
        run: Run | None = self._open[group]
        return run

    def _opened(self, spec: RunSpec) -> Run | None:
        """Open a wandb run beside any other of this process; `None` if wandb is disabled."""
        if self.settings["mode"] == "disabled" or self._unreachable:
            return None
        import wandb

        self.folder.mkdir(parents=True, exist_ok=True)
        spec.remove_earlier(self.folder / "wandb")
        # wandb stages tables and artifacts here until a sync; its default is the user's home folder.
        os.environ.setdefault("WANDB_DATA_DIR", str(self.folder.resolve() / "wandb" / "staging"))
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            disable_job_creation=True,
            x_disable_stats=True,
            x_disable_machine_info=True,  # the record has the kind of host; runs must not name the machine
            host="host",
            x_save_requirements=False,
        )
        tags = dict.fromkeys((*spec.tags, *self.settings["run_tags"]))
        return wandb.init(
            mode=self.settings["mode"],
            project=self.settings["project"],
            entity=self.entity,
            notes=self.notes,
            dir=self.folder.resolve(),  # wandb's own process may have another working folder
            id=spec.id,
            group=spec.group[:LONGEST_GROUP],
            name=f"{spec.name} {spec.key[:6]}",  # cells that differ in a setting may have the same name
            tags=[tag.strip()[:LONGEST_TAG] for tag in tags if tag.strip()],
            job_type=spec.kind,
            config=dict(spec.config),
            reinit="create_new",
            settings=settings,
        )

    def _finished(
        self, run: Run | None, fill: Callable[[Run], None], spec: RunSpec | None = None
    ) -> Path | None:
        """Fill a run and finish it, also after an error; its folder."""
        if run is None or run.settings.mode == "disabled":
            return None
        is_filled = False
        try:
            fill(run)
            is_filled = True
        finally:
            run.finish(exit_code=int(not is_filled or bool(spec and spec.failed)))
        if run.settings.mode in ("offline", "dryrun"):  # wandb's own logs name folders of the machine
            for link in (run.settings.log_symlink_user, run.settings.log_symlink_internal):
                Path(link).unlink(missing_ok=True)
            shutil.rmtree(run.settings.log_dir, ignore_errors=True)
        return self.folder / "wandb" / Path(run.dir).parent.name

    def _guarded(self, work: Callable[[], T], name: str, group: str) -> T | None:
        """What some work returns; an error in it loses nothing but this run, and `None` is returned."""
        try:
            return work()
        except Exception as wrong:
            if self.settings["mode"] in ("online", "run"):  # without network each run would be waited for
                self._unreachable.append(name)
                log.error(NO_NETWORK, name, group, wrong)
            else:
                log.exception("wandb could not write the run %r of %r; its record is kept", name, group)
            return None


def under_agent() -> bool:
    """Whether an agent of a wandb sweep started this command, which then writes one run, the agent's."""
    return bool(os.environ.get("WANDB_SWEEP_ID"))


def run_name(record: Record) -> str:
    """What a cell's run is called: method, device, dataset, and labels of its own."""
    labels = record.labels
    others = [f"{n}={text}" for n, text in labels.items() if n not in (*NAMED, *UNNAMED)]
    return " ".join([*(labels[name] for name in NAMED if name in labels), *others])


def cell_tags(record: Record) -> tuple[str, ...]:
    """Method, device and dataset, and whose weights and clock the figures rest on."""
    about = record.provenance
    named = [record.labels[name] for name in NAMED if name in record.labels]
    return (*named, f"weights: {about.weights}", f"clock: {about.clock}")
