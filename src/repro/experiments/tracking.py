"""wandb tracking: one finished run per cell and one per sweep.

The only module that imports wandb. Must not know how cells are computed; errors here are logged and lose no
record.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from repro.core.errors import InputError
from repro.records.record import Record, Round
from repro.reports.files import ALTERED
from repro.reports.formats.layout import aside_grid, grid, notes
from repro.reports.tables.table import Table

if TYPE_CHECKING:
    from wandb import Run

Mode = Literal["online", "offline", "disabled"]
FLAGS = ("clock", "weights", "costs", "commit", "dirty", "config_hash", "sources", "started", "finished")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tracker:
    """Writes runs below `folder`; does nothing if `mode` is `disabled`.

    Offline runs are complete on disk: `wandb leet` shows them, `wandb sync` uploads them later.
    """

    mode: Mode = "offline"
    project: str = "repro"
    folder: Path = Path("outputs")

    def check(self) -> None:
        """Check before the run that wandb runs can be written, so that wandb never prompts.

        Raises:
            InputError: an unknown mode, or `online` without a login.
        """
        if self.mode not in get_args(Mode):
            raise InputError(f"wandb mode is {self.mode!r}; choices: {', '.join(get_args(Mode))}")
        if self.mode != "online":
            return
        import wandb

        if not wandb.api.api_key:
            raise InputError(
                "wandb mode 'online' needs WANDB_API_KEY or `wandb login` first; or choose 'offline'"
            )

    def cell(self, record: Record, rounds: Sequence[Round] = (), trace: Path | None = None) -> Path | None:
        """Write the run of a cell: its config, values, rounds and timeline. A failed cell is a failed run.

        Returns the run's folder; `None` if wandb is disabled or failed (which is logged).
        """

        def fill(run: Run) -> None:
            run.summary.update({**record.values, "status": record.status, "key": record.key})
            _log_rounds(run, rounds)
            if record.error:
                run.summary["error"] = record.error
            if trace is not None:
                _log_files(run, f"timeline-{record.key[:12]}", "timeline", [trace])

        name = " ".join(record.labels.values()) or record.key[:12]
        flags = {name: getattr(record.provenance, name) for name in FLAGS}
        config = {**record.provenance.config, "labels": dict(record.labels), "provenance": flags}
        return self._write(fill, record.experiment, name, "cell", config, failed=not record.done)

    def sweep(self, table: Table, files: Mapping[str, Path]) -> Path | None:
        """Write the run of a sweep: its table, its figure and all its files; returns as `cell`."""

        def fill(run: Run) -> None:
            _log_table(run, table)
            if table.errors:
                run.summary.update({"error/median": table.errors.median, "error/worst": table.errors.worst})
            for path in files.values():
                _log_picture(run, path)
            artifact = re.sub(r"[^\w.-]+", "-", f"table-{table.experiment}")  # what wandb allows in a name
            _log_files(run, artifact, "table", list(files.values()))

        config = {"experiment": table.experiment, "command": table.command, "commits": list(table.commits)}
        group = table.experiment.partition(ALTERED)[0]  # that of its cells
        return self._write(fill, group, f"{table.experiment} table", "sweep", config, failed=False)

    def _write(
        self,
        fill: Callable[[Run], None],
        group: str,
        name: str,
        kind: str,
        config: dict[str, Any],
        *,
        failed: bool,
    ) -> Path | None:
        if self.mode == "disabled":
            return None
        try:
            with self._run(group, name, kind, config, failed=failed) as run:
                fill(run)
                return Path(run.dir).parent
        except Exception:  # an error in wandb must lose nothing but this run
            log.exception("wandb could not write the run %r of %r; its record is kept", name, group)
            return None

    @contextmanager
    def _run(
        self, group: str, name: str, kind: str, config: dict[str, Any], *, failed: bool
    ) -> Iterator[Run]:
        """Open a wandb run, beside any other of this process, and finish it also after an error."""
        import wandb

        self.folder.mkdir(parents=True, exist_ok=True)
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
            x_save_requirements=False,
        )
        run = wandb.init(
            mode=self.mode,
            project=self.project,
            dir=self.folder,
            group=group,
            name=name,
            job_type=kind,
            config=config,
            reinit="create_new",
            settings=settings,
        )
        finished = False
        try:
            yield run
            finished = True
        finally:
            run.finish(exit_code=int(failed or not finished))


def _log_rounds(run: Run, rounds: Sequence[Round]) -> None:
    """Log rounds as a table, and their numbers as curves."""
    import wandb

    if not rounds:
        return
    names = dict.fromkeys(name for each in rounds for name in each)
    table = wandb.Table(columns=[*names], data=[[each.get(name) for name in names] for each in rounds])
    for each in rounds:
        run.log({f"round/{name}": value for name, value in each.items() if isinstance(value, (int, float))})
    run.log({"rounds": table})


def _log_table(run: Run, table: Table) -> None:
    """Log the table as text, with its aside values and notes."""
    import wandb

    words = {"table": grid(table), "aside": aside_grid(table)}
    for name, each in words.items():
        columns = (f"{h.words} {part}".strip() for h in each.headings for part in h.parts)
        run.log({name: wandb.Table(columns=[*columns], data=[list(line) for line in each.lines])})
    run.summary["notes"] = "\n".join(notes(table))


def _log_picture(run: Run, path: Path) -> None:
    import wandb

    if path.suffix == ".png":
        run.log({path.stem: wandb.Image(str(path))})


def _log_files(run: Run, name: str, kind: str, paths: Sequence[Path]) -> None:
    """Log files as an artifact without copying them; by default wandb copies them to its staging folder."""
    import wandb

    artifact = wandb.Artifact(name, type=kind)
    for path in paths:
        artifact.add_file(str(path), policy="immutable")
    run.log_artifact(artifact)
