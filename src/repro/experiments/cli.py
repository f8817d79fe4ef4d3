"""The command `python -m repro`: Hydra runs one cell, or by `-m` or an experiment's grid a sweep.

Owns what a command checks before its cells, and what it says and returns at its end. Must not know how cells
are planned (`plan`), computed and stored (`sweep`).
"""

from __future__ import annotations

import logging
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log, env_override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from repro.core.errors import InputError
from repro.core.paths import conf_dir, from_home
from repro.core.registry import unknown
from repro.experiments.command_words import by_experiment, check_arguments, explain, judged_in_cells
from repro.experiments.composing import load_components, publish
from repro.experiments.guide.choices import BASH_WORDBREAKS, completions
from repro.experiments.guide.help import help_text
from repro.experiments.interrupted import Terminated, go_on, stop_message, stopping
from repro.experiments.plan import PlannedCell, plain, plan_cell, request, sweep_plan, table_section, words_of
from repro.experiments.progress import Watcher, alone
from repro.experiments.summaries.cell_screen import show_note
from repro.experiments.summaries.files import show_files
from repro.experiments.summaries.notes import Note
from repro.experiments.summaries.sweep_table import DELETED_VALUE, sweep_table
from repro.experiments.sweep import Engine, Sweep
from repro.experiments.tables import Asked
from repro.experiments.unread import UNREAD_BY_PAGES, UnreadWords
from repro.records.record import canonical
from repro.reports.spec.beside import as_typed
from repro.reports.spec.spec import TableSpec
from repro.scenarios.registry import scenario_of

COMMAND_SETTINGS = ("name", "sweep", "results", "outputs", "wandb", "table")
"""Settings of which a sweep has one value."""
SWEEPERS = ("grid",)
LAUNCHERS = ("cells", "dask")
FULL_ERROR = "HYDRA_FULL_ERROR"
FORESEEN_ERRORS = (InputError, HydraException, OmegaConfBaseException, OSError, RecursionError)
"""Errors of the input or of the disk, which end a command with one sentence."""
SCREEN_WIDTH = 200
"""Width of the output in columns if it is not a terminal."""


class Command:
    """What Hydra calls: the task, which is one cell, and `run_sweep` of our launchers.

    Attributes:
        watched: the cells of its sweep; `None` of one cell.
        has_failed: whether a cell of the sweep or its table failed.
        error: what was foreseen and ended it.
    """

    def __init__(self) -> None:
        self.watched: Watcher | None = None
        self.has_failed = False
        self.error: Exception | None = None

    def __call__(self, config: DictConfig) -> None:
        """Run one cell, or write a page that has no cells (claims, facts, drawings)."""
        with self._keeping_errors():
            quiet()
            load_components()
            _require_one_cell(config)
            section, unread_words = table_section(config), UnreadWords(words_of(HydraConfig.get()))
            settings = plain(config)
            if isinstance(section, dict):
                unread_words.see_unread(UNREAD_BY_PAGES)
                unread_words.require_none()
                page = Sweep(settings, screen())
                show_files(page.console, page.read(str(config.name), section))
                return
            unread_words.see(settings)
            unread_words.require_none()
            sweep = Sweep(settings, screen())
            with alone(scenario_of(settings).labels_of(settings)["method"]) as progress:
                cell_note = sweep.cell(settings, progress)
            if sweep.mode == "list" or cell_note.state == "skipped":
                sweep.finish(Asked(str(config.name)), None, [cell_note])
                return
            show_note(sweep.console, sweep.store, sweep.outputs, cell_note, sweep.tracked)
            if cell_note.state == "failed":
                raise InputError(cell_note.error)

    @contextmanager
    def _keeping_errors(self) -> Iterator[None]:
        """Within the block, a foreseen error is kept: Hydra would say first which job it was."""
        try:
            yield
        except FORESEEN_ERRORS as wrong:
            self.error = wrong

    def run_sweep(
        self,
        config: DictConfig,
        loader: ConfigLoader,
        jobs: Sequence[Sequence[str]],
        engine: AbstractContextManager[Engine] | None = None,
    ) -> None:
        """Plan and run the cells of a sweep, and make its table.

        Args:
            config: the sweep's configuration.
            loader: composes its cells.
            jobs: the overrides of each cell.
            engine: computes cells elsewhere, once it is opened; `None` for this process.

        Raises:
            InputError: the sweep cannot be run; whatever goes wrong in a cell is in its record.
        """
        quiet()
        _require_sweep(config, jobs)
        with env_override(dict(config.hydra.job.env_set)):
            sweep = Sweep(plain(config, "labels"), screen(), request(config).folder, len(jobs))
            is_list = sweep.mode == "list"
            if not is_list and not sweep.store.finished_keys():  # all cells are computed
                sweep.tracker.check()
            _make_folder(config)
            watcher = self.watched = Watcher(announced_cells=len(jobs))
            engine_context = nullcontext() if engine is None or is_list else engine
            try:
                with nullcontext() if is_list else watcher.on_screen(), engine_context as open_engine:
                    sweep.run(_plan_cells(config, loader, jobs, watcher), watcher, open_engine)
                self.has_failed = _is_unfinished(config, sweep, watcher)
            finally:
                sweep.tracker.close()


def _require_one_cell(config: DictConfig) -> None:
    """InputError for a cell whose command is for sweeps."""
    settings = HydraConfig.get()
    _require_one_folder(settings)
    if settings.mode == RunMode.MULTIRUN:
        raise InputError(
            unknown("hydra/launcher", str(settings.runtime.choices["hydra/launcher"]), LAUNCHERS)
        )
    for override in map(str, settings.overrides.hydra):
        if re.match(r"[+~]*hydra[./](launcher|sweep(er)?)\b", override):
            raise InputError(f"{override} is for sweeps, and this is one cell; add -m, or leave it out")
    for component, settings in (config.get("beside") or {}).items():
        raise InputError(f"{config.name} has no cells, so none for {component}.{next(iter(settings))}")


def _require_sweep(config: DictConfig, jobs: Sequence[Sequence[str]]) -> None:
    """InputError for a sweep that cannot be one: another sweeper, several values of what it has once."""
    _require_one_folder(config.hydra)
    sweeper = str(config.hydra.runtime.choices["hydra/sweeper"])
    if sweeper not in SWEEPERS:
        raise InputError(
            f"{unknown('hydra/sweeper', sweeper, SWEEPERS)}; it lists the values that -m goes through"
        )
    varied_overrides = set().union(*jobs).difference(set(jobs[0]).intersection(*jobs))
    for key in sorted({override.lstrip("+~").partition("=")[0] for override in varied_overrides}):
        if key.partition(".")[0] in COMMAND_SETTINGS:
            raise InputError(f"{key} has several values, and a sweep has one {key}; run the command for each")
    table = table_section(config)
    if isinstance(table, TableSpec):
        request(config).require_rows(request(config).spec(table))


def _require_one_folder(hydra: Any) -> None:
    if hydra.job.chdir:
        raise InputError(
            "hydra.job.chdir is true, and every cell would have results and outputs of its own below its "
            "job's folder; leave it out, since folders are relative to where the command starts"
        )


def _make_folder(config: DictConfig) -> None:
    """Make the sweep's folder with its configuration, as Hydra does; its log is written there."""
    folder = Path(from_home(config.hydra.sweep.dir)).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, folder / "multirun.yaml")
    with open_dict(config):
        config.hydra.runtime.output_dir = str(folder)
    configure_log(config.hydra.job_logging, config.hydra.verbose)


def _plan_cells(
    config: DictConfig, loader: ConfigLoader, jobs: Sequence[Sequence[str]], watcher: Watcher
) -> Iterator[PlannedCell]:
    """Plan the cells of a sweep, one after the other; arguments as of `run_sweep`.

    Raises:
        InputError: no cell reads a word of the command, or has a label of the table of a whole sweep.
    """
    words = words_of(config.hydra)
    if config.table:  # a draft that a method does not take still names its row
        words = [word for word in words if not word.startswith("model@draft=")]
    plan, unread_words = sweep_plan(config, loader, jobs), UnreadWords(words)
    for cell_number, overrides in enumerate(jobs):
        yield plan_cell(plan, cell_number, overrides, unread_words)
    unread_words.require_none()
    table = table_section(config)
    if not isinstance(table, TableSpec) or not request(config).whole:
        return
    names, spec = watcher.label_names(), request(config).spec(table)
    selections = (part for column in spec.columns for part in (column.where, column.over))
    for name in (*spec.rows.by, *spec.where, *(name for part in selections for name in part)):
        if name not in names:
            raise InputError(f"in table {spec.experiment!r} {unknown('label', name, names)}")


def _is_unfinished(config: DictConfig, sweep: Sweep, watcher: Watcher) -> bool:
    """Print and write a sweep's table. Returns whether it, or a cell, failed or was not run."""
    lost_cells = [
        watcher.name(cell_number)
        for cell_number in range(watcher.total)
        if cell_number not in watcher.finished
    ]
    if lost_cells:
        tell_error(
            f"{len(lost_cells)} of {watcher.total} cells of the plan were not run: {_first_of(lost_cells)}\n"
            "  the same command goes on with what is done"
        )
    first_notes: dict[str, Note] = {}  # a cell that is listed twice is shown once
    for cell_number, note in sorted(watcher.finished.items()):
        if note.state != "written":
            first_notes.setdefault(canonical([note.key or note.chosen or cell_number, note.labels]), note)
    notes = [*first_notes.values()]
    if not notes:
        return bool(lost_cells)
    try:
        _write_table(config, sweep, notes)
    except (InputError, OSError) as wrong:  # all records are kept
        tell_error(explain(wrong))
        return True
    failed_notes = [note for note in notes if note.error]  # a list has none of cells that failed before
    for error in dict.fromkeys(note.error for note in failed_notes):
        cells = [" ".join(note.labels.values()) for note in failed_notes if note.error == error]
        tell_error(f"{error}\n  in {len(cells)} of {len(notes)} cells: {_first_of(cells)}")
    if (failed_notes or lost_cells) and sweep.mode != "list":
        sweep.console.print(go_on([*map(as_typed, sys.argv)], sweep.mode), style="red", soft_wrap=True)
    return bool(failed_notes or lost_cells)


def _write_table(config: DictConfig, sweep: Sweep, notes: list[Note]) -> None:
    """Write the table of the experiment, or of the sweep's own."""
    query, table = request(config), table_section(config)
    overrides = _by_key(words_of(config.hydra))
    if table is None and sweep.mode != "list" and (result := sweep_table(notes, sweep.store, overrides)):
        result.command.write(result.name, sweep.results)
        query, table, notes = Asked(result.name), result.table, result.notes
    show_files(sweep.console, sweep.finish(query, table if isinstance(table, TableSpec) else None, notes))


def _by_key(words: Sequence[str]) -> dict[str, str]:
    """The values of overrides as they were typed, by key; of `~NAME` the value is null."""
    key_values = (word.partition("=") for word in words)
    return {key: value if equals else DELETED_VALUE for key, equals, value in key_values}


def _first_of(cells: Sequence[str]) -> str:
    """Names of cells in a line, as many as fit there."""
    return textwrap.shorten("; ".join(cells), SCREEN_WIDTH - 40, placeholder=" ...")


def screen() -> Console:
    """The console for progress and tables; `SCREEN_WIDTH` columns if the output is a file or a pipe."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if has_width else SCREEN_WIDTH)


def quiet() -> None:
    """Set the libraries' loggers to ERROR, so that they do not disturb the progress bars."""
    for name in ("transformers", "datasets", "httpx", "evaluate"):
        logging.getLogger(name).setLevel(logging.ERROR)


def tell_error(sentence: str) -> None:
    """Print an error to stderr."""
    print(f"error: {sentence}", file=sys.stderr)


def complete(arguments: list[str]) -> bool:
    """Answer a shell's question for names of a group. Returns whether that was all that was asked."""
    if "install=bash" in arguments:
        arguments[0] = "repro"  # what can be completed; `python -m repro` cannot
        print(BASH_WORDBREAKS)
    if "query=bash" not in arguments:
        return False
    names = completions(os.environ.get("COMP_LINE", ""))
    if names is not None:
        print(*names)
    return names is not None


def main() -> None:
    """The command `python -m repro`. An input error prints one sentence; HYDRA_FULL_ERROR=1 its traceback."""
    command, statuses = Command(), list[int]()
    try:
        with stopping():
            commands: list[list[str]] = []
            with _telling_errors(statuses):
                commands = _commands()
            for words in commands:  # each experiment has its own cells
                command, sys.argv[1:] = Command(), words
                with _telling_errors(statuses), env_override({FULL_ERROR: "1"}):  # Hydra raises its errors
                    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(
                        command
                    )()
                    if command.error:
                        raise command.error
                    statuses.append(int(command.has_failed))
    except KeyboardInterrupt as stop:
        if os.environ.get(FULL_ERROR):
            raise
        print(stop_message([*map(as_typed, sys.argv)], command.watched), file=sys.stderr)
        sys.exit(stop.code if isinstance(stop, Terminated) else 130)
    if any(statuses):
        sys.exit(next(filter(None, statuses)))


def _commands() -> list[list[str]]:
    """The words of a command of each experiment that `sys.argv` names; none if help was all that it asked."""
    sys.argv[1:] = check_arguments(sys.argv[1:])
    if {"--help", "-h"} & {*sys.argv}:
        print(help_text())
        return []
    if complete(sys.argv):
        return []
    publish()
    return [judged_in_cells(words) for words in by_experiment(sys.argv[1:])]


@contextmanager
def _telling_errors(statuses: list[int]) -> Iterator[None]:
    """Within the block, a foreseen error is printed, and the exit status 2 added."""
    try:
        yield
    except FORESEEN_ERRORS as wrong:
        if os.environ.get(FULL_ERROR):
            raise
        tell_error(explain(wrong))
        statuses.append(2)
