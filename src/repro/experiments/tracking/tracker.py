"""wandb tracking: one finished run for each cell and one for each sweep.

Must not know how cells are computed; an error of wandb is logged and loses no record. wandb is imported only
when a run is written.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.core.errors import InputError
from repro.core.paths import from_home
from repro.core.registry import require_choice
from repro.core.typed import typed
from repro.experiments.tracking import contents
from repro.experiments.tracking.runs import RunSpec, opened
from repro.records.record import Record, Round, Scalar, content_hash
from repro.reports.comparison.summary import median, summed
from repro.reports.files import ALTERED
from repro.reports.tables.table import Table

if TYPE_CHECKING:
    from wandb import Run

MODES = ("online", "offline", "disabled")
OLDER = {"dryrun": "offline", "run": "online"}
"""Earlier names of modes, which WANDB_MODE may still have."""
VARIABLES = {name: f"WANDB_{name.upper()}" for name in ("mode", "project", "entity", "tags", "notes")}
"""wandb's variables for settings that are null."""
REFUSED = "/\\#?%:"
"""Characters that wandb accepts in no project's name."""
LONGEST_NAME = 128
MOST_RUNS = 100
"""Cells of a sweep up to which each gets a run; one takes 0.12 s of CPU time."""
FLAGS = ("clock", "weights", "costs", "commit", "dirty", "config_hash", "sources", "started", "finished")
NAMED = ("method", "device", "dataset")
"""Labels that a run's name begins with; those of a model or of its agreement are not in it."""
UNNAMED = ("target", "draft", "agreement")
NO_NETWORK = (
    "wandb could not write the run %r of %r (%s); all records are kept, and this process tries no other run; "
    "the same command with wandb.again=true writes them, once there is network"
)
log = logging.getLogger(__name__)

_unreachable: set[str] = set()
"""Modes in which this process writes no more runs."""


@dataclass(frozen=True)
class Tracker:
    """Writes runs below `folder`; does nothing if `mode` is `disabled`.

    Offline runs are complete on disk: `wandb leet` shows them, `wandb sync` uploads them later.

    Attributes:
        mode: one of `MODES`.
        project: project of all runs.
        entity: user or team that they belong to; None for the login's own.
        tags: tags of all runs, beside those that each has by itself.
        notes: a note for all runs.
        cells: whether cells that are computed get runs; that of their sweep has a row for each anyway.
        again: whether cells that were done before get their runs again, from their records.
        folder: runs lie in its folder `wandb`.
    """

    mode: str = "offline"
    project: str = "repro"
    entity: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None
    cells: bool = True
    again: bool = False
    folder: Path = Path("outputs")

    @classmethod
    def parse(cls, section: Mapping[str, Any], folder: Path) -> Tracker:
        """Read the section `wandb` of a configuration, with wandb's variables and files where it says null.

        Raises:
            InputError: a setting or a variable is unknown or malformed.
        """
        given = {str(name): value for name, value in section.items() if value is not None}
        place = given.pop("dir", os.environ.get("WANDB_DIR") or str(folder))
        if not (isinstance(place, str) and place):
            raise InputError(f"wandb.dir is {place!r}; it must be the path of a folder")
        given = _of_environment() | given
        found = replace(typed(cls, given, "wandb"), folder=Path(from_home(place)))
        require_choice("wandb mode", found.mode, MODES)
        if found.again and found.mode == "disabled":
            raise InputError(
                "wandb.again writes runs, and the wandb mode is disabled; choose offline or online"
            )
        if under_agent() and found.cells:  # the agent waits for a run, also of a cell that was done before
            found = replace(found, again=True)
        for name in ("project", "entity"):
            text = getattr(found, name)
            if text is not None and (
                not text.strip() or len(text) > LONGEST_NAME or set(text) & set(REFUSED)
            ):
                raise InputError(
                    f"wandb.{name} is {text!r}; it must be a name of at most {LONGEST_NAME} characters, "
                    f"without {' '.join(REFUSED)}"
                )
        return found

    def check(self) -> None:
        """Check before the run that wandb runs can be written, so that wandb never prompts.

        Raises:
            InputError: mode `online` without a login, or a folder that cannot be written to.
        """
        if self.mode == "disabled":
            return
        place = self.folder
        while not place.exists() and place != place.parent:
            place = place.parent
        if not (place.is_dir() and os.access(place, os.W_OK)):
            raise InputError(
                f"wandb runs cannot lie in {self.folder}: {place} is no folder that can be written to; "
                "choose another wandb.dir, or wandb.mode=disabled"
            )
        if self.mode != "online":
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
    ) -> Path | None:
        """Write the run of a cell. A failed cell is a failed run.

        Args:
            record: its figures, config and labels.
            rounds: its lines of detail.
            trace: its timeline.
            answers: what it answered, such as {"prompt": 0, "answer": "...", "target": "...", "score": 1.0}.

        Returns:
            The run's folder; `None` if wandb is disabled or failed (which is logged).
        """

        if not (self.cells or self.again):
            return None

        def fill(run: Run) -> None:
            contents.log_values(run, record)
            contents.log_rounds(run, rounds)
            contents.log_rows(run, "answers", answers)
            if trace is not None:
                contents.log_files(run, f"timeline-{record.key[:12]}", "timeline", [trace])

        flags = {name: getattr(record.provenance, name) for name in FLAGS}
        config = {**record.provenance.config, "labels": dict(record.labels), "provenance": flags}
        name, tags = run_name(record), cell_tags(record)
        spec = RunSpec(record.key, name, record.experiment, "cell", tags, config, not record.done)
        return self._write(fill, spec)

    def sweep(self, table: Table, files: Mapping[str, Path], records: Sequence[Record] = ()) -> Path | None:
        """Write the run of a sweep: its table, its pictures and files, and a row for each of its cells.

        Returns as `cell`.
        """

        def fill(run: Run) -> None:
            contents.log_table(run, table)
            contents.log_cells(run, records)
            if wrong := summed(table.compared).relative:
                run.log({"error/median": median(wrong), "error/worst": abs(wrong[0].error or 0.0)})
            contents.log_pictures(run, list(files.values()))
            name = re.sub(r"[^\w.-]+", "-", f"table-{table.experiment}")  # what wandb allows in a name
            contents.log_files(run, name, "table", list(files.values()))

        config = {"experiment": table.experiment, "command": table.command, "commits": list(table.commits)}
        key = content_hash([table.experiment, sorted(record.key for record in records)])
        tags = ("sweep", *table.papers)
        group = table.experiment.partition(ALTERED)[0]  # that of its cells
        spec = RunSpec(key, f"{table.experiment} table", group, "sweep", tags, config)
        return self._write(fill, spec)

    def _write(self, fill: Callable[[Run], None], spec: RunSpec) -> Path | None:
        if self.mode == "disabled" or self.mode in _unreachable:
            return None
        spec = replace(spec, tags=(*spec.tags, *self.tags))
        try:
            with opened(spec, self.mode, self.project, self.entity, self.notes, self.folder) as run:
                fill(run)
                return self.folder / "wandb" / Path(run.dir).parent.name
        except Exception as wrong:  # an error in wandb must lose nothing but this run
            if self.mode == "online":  # without network each run would be waited for
                _unreachable.add(self.mode)
                log.error(NO_NETWORK, spec.name, spec.group, wrong)
                return None
            log.exception("wandb could not write the run %r of %r; its record is kept", spec.name, spec.group)
            return None


def under_agent() -> bool:
    """Whether an agent of a wandb sweep started this command, which then writes one run, the agent's."""
    return bool(os.environ.get("WANDB_SWEEP_ID"))


def _of_files() -> dict[str, Any]:
    """The settings that `wandb disabled`, `wandb offline` and `wandb init` wrote for this user and folder."""
    root, home = Path(os.environ.get("WANDB_DIR") or "."), Path.home() / ".config" / "wandb"
    here = root / (".wandb" if (root / ".wandb").exists() else "wandb")
    files = [Path(os.environ.get("WANDB_CONFIG_DIR") or home) / "settings", here / "settings"]
    parser = ConfigParser(interpolation=None)
    try:
        parser.read(files, encoding="utf-8")
    except (ConfigParserError, UnicodeDecodeError) as wrong:
        raise InputError(f"wandb's settings in {files[0]} or {files[1]} are damaged: {wrong}") from wrong
    written = dict(parser["default"]) if parser.has_section("default") else {}
    return {name: written[name] for name in VARIABLES if written.get(name)}


def _of_environment() -> dict[str, Any]:
    """The settings that wandb's own variables give, and else its files."""
    found = _of_files()
    for name, variable in VARIABLES.items():
        if text := os.environ.get(variable):
            found[name] = text
    if "mode" in found:
        found["mode"] = OLDER.get(found["mode"], found["mode"])
    if os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1", "yes", "on", "t", "y"):
        found["mode"] = "disabled"
    if "tags" in found:
        found["tags"] = [tag.strip() for tag in found["tags"].split(",")]
    return found


def run_name(record: Record) -> str:
    """What a cell's run is called: method, device, dataset, and labels of its own."""
    labels = record.labels
    own = [f"{n}={text}" for n, text in labels.items() if n not in (*NAMED, *UNNAMED)]
    return " ".join([*(labels[name] for name in NAMED if name in labels), *own])


def cell_tags(record: Record) -> tuple[str, ...]:
    """Method, device and dataset, and whose weights and clock the figures rest on."""
    about = record.provenance
    named = [record.labels[name] for name in NAMED if name in record.labels]
    return (*named, f"weights: {about.weights}", f"clock: {about.clock}")
