"""Opens and finishes wandb runs: their ids, folders and settings.

Must not know what a run contains.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wandb import Run

LONGEST_TAG = 64
"""Characters of a tag that wandb accepts."""

KEY, FAILED = 12, "-failed"
"""Digits of the key in a run's id, and the end of a failed run's id."""


@dataclass(frozen=True)
class RunSpec:
    """A run that shall be written.

    Attributes:
        key: hexadecimal digits of what it shows; a later run with the same key takes its place.
        name: display name.
        group: the experiment.
        kind: `cell` or `sweep`.
        tags: what dashboards filter by.
        config: settings.
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

    @property
    def display(self) -> str:
        """The name with digits of the key: cells that differ in a setting may have the same name."""
        return f"{self.name} {self.key[:6]}"

    def replaces(self, folder: Path) -> Iterator[Path]:
        """Folders of earlier runs that this one takes the place of."""
        for end in [FAILED] if self.failed else ["", FAILED]:
            yield from folder.glob(f"*run-*-{self.key[:KEY]}{end}")


@contextmanager
def opened(
    spec: RunSpec, mode: str, project: str, entity: str | None, notes: str | None, folder: Path
) -> Iterator[Run]:
    """Open a wandb run beside any other of this process, and finish it also after an error.

    Folders of earlier runs of the same key are removed, so that a cell that ran again is not uploaded twice.
    """
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    for earlier in [*spec.replaces(folder / "wandb")]:
        shutil.rmtree(earlier, ignore_errors=True)
    # wandb stages tables and artifacts here until a sync; its default is the user's home folder.
    os.environ.setdefault("WANDB_DATA_DIR", str(folder.resolve() / "wandb" / "staging"))
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
    run = wandb.init(
        mode=mode,  # type: ignore[arg-type]
        project=project,
        entity=entity,
        notes=notes,
        dir=folder.resolve(),  # wandb's own process may have another working folder
        id=spec.id,
        group=spec.group,
        name=spec.display,
        tags=[tag[:LONGEST_TAG] for tag in dict.fromkeys(spec.tags) if tag],
        job_type=spec.kind,
        config=dict(spec.config),
        reinit="create_new",
        settings=settings,
    )
    finished = False
    try:
        yield run
        finished = True
    finally:
        run.finish(exit_code=int(spec.failed or not finished))
        if finished and mode == "offline":
            _remove_logs(run)


def _remove_logs(run: Run) -> None:
    """Remove wandb's logs of a run that is complete: they name folders of the machine."""
    for link in (run.settings.log_symlink_user, run.settings.log_symlink_internal):
        Path(link).unlink(missing_ok=True)
    shutil.rmtree(run.settings.log_dir, ignore_errors=True)
