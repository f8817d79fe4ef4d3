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
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from repro.core.errors import InputError
from repro.core.paths import from_home
from repro.core.typed import typed
from repro.experiments.tracking import contents
from repro.records.record import Record, Round, Scalar, content_hash
from repro.reports.tables.table import Table

if TYPE_CHECKING:
    from wandb import Run

MOST_RUNS = 100
"""Cells of a sweep up to which each gets a run; one takes 0.12 s of CPU time."""
LONGEST_TAG, LONGEST_GROUP = 64, 128
"""Characters that wandb accepts."""
KEY_DIGITS = 12
"""Digits of the key in a run's id."""
NAME_LABELS = ("method", "device", "dataset")
"""Labels that a run's name begins with; those of a model or of its agreement are not in it."""
MODEL_LABELS = ("target", "draft", "agreement")
NETWORK_ERROR = (
    "wandb could not write the run %r of %r (%s); all records are kept, and this command tries no other run; "
    "the same command with wandb.again=true writes them, once there is network"
)
T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass
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

    mode: Literal["online", "offline", "disabled"] | None = None
    project: str | None = None
    entity: str | None = None
    tags: tuple[str, ...] | None = None
    notes: str | None = None
    cells: bool | None = None
    again: bool = False
    dir: str | None = None
    outputs: Path = Path("outputs")
    _sweeps: dict[str, Any] = field(default_factory=dict, init=False)
    _states: list[str] = field(default_factory=list, init=False)
    _is_checked: bool = field(default=False, init=False)
    _is_unreachable: bool = field(default=False, init=False)

    @classmethod
    def parse(cls, section: Mapping[str, Any], outputs: Path, cell_count: int | None = None) -> Tracker:
        """Read the section `wandb` of the configuration of a cell, or of a sweep of so many.

        Under an agent of wandb, which waits for one run, a sweep's is the only one, and a cell that was done
        before has one again.

        Raises:
            InputError: a setting is unknown or malformed.
        """
        settings = {str(name): value for name, value in section.items() if value is not None}
        tracker = replace(typed(cls, settings, "wandb"), outputs=outputs)
        for name in ("project", "entity", "dir"):
            if name in settings and not settings[name].strip():
                raise InputError(f"wandb.{name} is {settings[name]!r}; it must be a name, or null")
        if tracker.again and tracker.mode == "disabled":
            raise InputError(
                "wandb.again writes runs, and the wandb mode is disabled; choose offline or online"
            )
        if _has_agent():
            return replace(tracker, cells=cell_count is None, again=cell_count is None)
        is_small = cell_count is None or cell_count <= MOST_RUNS
        return tracker if tracker.cells is not None else replace(tracker, cells=is_small)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """`mode`, `project`, `run_tags` and `root_dir`: the settings, else what wandb's own say, else ours.

        Raises:
            InputError: wandb refuses one.
        """
        if self.mode == "disabled":
            return {"mode": "disabled"}
        import wandb

        defaults = {"mode": "offline", "project": "repro", "run_tags": (), "root_dir": str(self.outputs)}
        folder = None if self.dir is None else from_home(self.dir)
        settings = {"mode": self.mode, "project": self.project, "run_tags": self.tags, "root_dir": folder}
        try:
            setup = wandb.setup().settings
            wandb.Settings(project=self.project, entity=self.entity)
        except (wandb.Error, ValueError) as wrong:
            raise InputError(f"wandb refuses its settings: {' '.join(str(wrong).split())}") from wrong
        preset = {name: getattr(setup, name) for name in defaults if name in setup.model_fields_set}
        return defaults | preset | {name: value for name, value in settings.items() if value is not None}

    @property
    def folder(self) -> Path:
        """Runs lie in its folder `wandb`."""
        return Path(self.settings["root_dir"])

    def check(self) -> None:
        """Check once, before the first run, that runs can be written, so that wandb never prompts.

        Raises:
            InputError: mode `online` without a login, or a folder that cannot be written to.
        """
        if self._is_checked or self.settings["mode"] == "disabled":
            return
        folder = next(folder for folder in (self.folder, *self.folder.absolute().parents) if folder.exists())
        if not (folder.is_dir() and os.access(folder, os.W_OK)):
            raise InputError(
                f"wandb runs cannot lie in {self.folder}: {folder} is no folder that can be written to; "
                "choose another wandb.dir, or wandb.mode=disabled"
            )
        if self._is_online:
            _require_login()
        self._is_checked = True

    @property
    def _is_online(self) -> bool:
        return self.settings["mode"] in ("online", "run")

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
        if group and (sweep_run := self._sweep_run(group)):
            self._states.append(record.status)
            self._guard(partial(contents.log_progress, sweep_run, record, self._states), group, group)
        if self.cells is False and not self.again:
            return None
        name, group = run_name(record), group or record.experiment

        def write() -> Path | None:
            run = self._open(record.key, name, group, "cell", cell_tags(record), record)
            return self._finish_run(
                run, lambda run: contents.fill_cell(run, record, rounds, answers, trace), record.done
            )

        return self._guard(write, name, group)

    def sweep(
        self, group: str, table: Table, files: Mapping[str, Path], records: Sequence[Record] = ()
    ) -> Path | None:
        """Finish the run of a sweep: its table, its pictures and files, and a row for each of its cells.

        A sweep whose cells were all done before has none, except under an agent of wandb, which waits for it.
        Returns as `cell`.
        """
        if group not in self._sweeps and not _has_agent():
            return None
        run = self._sweep_run(group)
        self._sweeps.pop(group)
        fill = partial(contents.fill_sweep, table=table, files=[*files.values()], records=records)
        return self._guard(lambda: self._finish_run(run, fill), f"{table.experiment} table", group)

    def close(self) -> None:
        """End the runs of sweeps that have no table as failed ones."""
        while self._sweeps:
            group, run = self._sweeps.popitem()
            if run is not None:
                self._guard(partial(run.finish, exit_code=1), "table", group)

    def _sweep_run(self, group: str) -> Run | None:
        """The run of a sweep, which is opened with its first cell."""
        if group not in self._sweeps:
            open_run = partial(self._open, content_hash(group), f"{group} table", group, "sweep", ("sweep",))
            self._sweeps[group] = self._guard(open_run, f"{group} table", group)
        run: Run | None = self._sweeps[group]
        return run

    def _open(
        self, key: str, name: str, group: str, kind: str, tags: Sequence[str], record: Record | None = None
    ) -> Run | None:
        """Open a run beside any other of this process; `None` if wandb is disabled.

        It takes the place of earlier runs with the same id, but one of a failed cell of no finished run's.
        """
        if self.settings["mode"] == "disabled" or self._is_unreachable:
            return None
        import wandb

        folder = self.folder.resolve()  # wandb's own process may have another working folder
        folder.mkdir(parents=True, exist_ok=True)
        # wandb stages tables and artifacts here until a sync; its default is the user's home folder.
        os.environ.setdefault("WANDB_DATA_DIR", str(folder / "wandb" / "staging"))
        slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:60]
        suffix = "-failed" if record and not record.done else ""
        for earlier_folder in (folder / "wandb").glob(f"*run-*-{key[:KEY_DIGITS]}{suffix or '*'}"):
            shutil.rmtree(earlier_folder, ignore_errors=True)
        all_tags = dict.fromkeys((*tags, *self.settings["run_tags"]))
        return wandb.init(
            mode=self.settings["mode"],
            project=self.settings["project"],
            entity=self.entity,
            notes=self.notes,
            dir=folder,
            id=f"{slug}-{key[:KEY_DIGITS]}{suffix}",
            group=group[:LONGEST_GROUP],
            name=f"{name} {key[:6]}",  # cells that differ in a setting may have the same name
            tags=[tag.strip()[:LONGEST_TAG] for tag in all_tags if tag.strip()],
            job_type=kind,
            config=contents.settings_of(record) if record else {},
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                disable_job_creation=True,
                x_disable_stats=True,
                x_disable_machine_info=True,  # the record has the kind of host
                host="host",
                x_save_requirements=False,
            ),
        )

    def _finish_run(self, run: Run | None, fill: Callable[[Run], None], is_done: bool = True) -> Path | None:
        """Fill a run and finish it, also after an error; its folder."""
        if run is None or run.settings.mode == "disabled":
            return None
        exit_code = 1
        try:
            fill(run)
            exit_code = int(not is_done)
        finally:
            run.finish(exit_code=exit_code)
        if run.settings.mode in ("offline", "dryrun"):  # wandb's own logs name folders of the machine
            for link in (run.settings.log_symlink_user, run.settings.log_symlink_internal):
                Path(link).unlink(missing_ok=True)
            shutil.rmtree(run.settings.log_dir, ignore_errors=True)
        return self.folder / "wandb" / Path(run.dir).parent.name

    def _guard(self, work: Callable[[], T], name: str, group: str) -> T | None:
        """What some work returns; an error in it loses nothing but this run, and `None` is returned."""
        try:
            return work()
        except Exception as wrong:
            if self._is_online:  # without network each run would be waited for
                self._is_unreachable = True
                log.error(NETWORK_ERROR, name, group, wrong)
            else:
                log.exception("wandb could not write the run %r of %r; its record is kept", name, group)
            return None


def _has_agent() -> bool:
    """Whether an agent of a wandb sweep runs this command."""
    return bool(os.environ.get("WANDB_SWEEP_ID"))


def _require_login() -> None:
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


def run_name(record: Record) -> str:
    """What a cell's run is called: method, device, dataset, and labels of its own."""
    labels = record.labels
    extra_labels = [f"{n}={text}" for n, text in labels.items() if n not in (*NAME_LABELS, *MODEL_LABELS)]
    return " ".join([*(labels[name] for name in NAME_LABELS if name in labels), *extra_labels])


def cell_tags(record: Record) -> tuple[str, ...]:
    """Method, device and dataset, and whose weights and clock the figures rest on."""
    provenance = record.provenance
    labels = [record.labels[name] for name in NAME_LABELS if name in record.labels]
    return (*labels, f"weights: {provenance.weights}", f"clock: {provenance.clock}")
