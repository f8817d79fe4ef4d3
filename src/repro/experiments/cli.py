"""The Hydra application: run a cell from a composed configuration, and build a sweep's table.

`python -m repro` runs one cell, `-m` sweeps, `experiment=NAME` regenerates a published table or figure.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import hydra
from hydra import compose
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import env_override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from rich.console import Console

from repro.core.errors import InputError
from repro.core.overrides import word
from repro.core.paths import conf_dir, from_home
from repro.core.registry import unknown
from repro.experiments.command_words import (
    EXPERIMENT,
    SEARCH_PATH,
    by_experiment,
    judged_in_cells,
    parsed,
    unswept,
    with_checked_folders,
)
from repro.experiments.composing import load_components, publish
from repro.experiments.guide.choices import KEEP_AT, completed
from repro.experiments.guide.explaining import check_overrides, in_order, no_setting, no_such, unreadable
from repro.experiments.guide.help import help_text
from repro.experiments.hydra_private import get_args_parser
from repro.experiments.interrupted import Terminated, go_on, stopped, stopping
from repro.experiments.pages import computes_nothing, written_out
from repro.experiments.plan import (
    CellPlan,
    has_group,
    hydra_lock,
    jobs_of,
    opened,
    plain,
    plain_value,
    planning,
    shared_by,
)
from repro.experiments.progress import Watcher, alone
from repro.experiments.summaries.cell_screen import show_note
from repro.experiments.summaries.files import show_files
from repro.experiments.summaries.notes import Note
from repro.experiments.summaries.sweep_table import DELETED, sweep_table
from repro.experiments.sweep import Engine, PlannedCell, Sweep, checked_mode, planned
from repro.experiments.tables import Asked, matter
from repro.experiments.tracking.tracker import Tracker
from repro.experiments.unread import OF_NO_CELL, UnreadWords
from repro.records.build_cache import file_error
from repro.records.record import canonical
from repro.reports.spec.beside import as_typed, carried
from repro.reports.spec.experiment import experiments
from repro.scenarios.registry import scenario_of
from repro.scenarios.sections import FOLDERS, WEIGHTS, check_places

FIRST = "the first file is conf/config.yaml, to which --config-dir adds a folder"
NOT_TAKEN = {
    **dict.fromkeys(("--config-path", "-cp", "--config-name", "-cn"), FIRST),
    "--experimental-rerun": "it reads a pickle, which may run code",
}
"""Hydra's flags that would have others' files where ours belong."""
HOME, QUOTED = re.compile(r"(?<=[=,\[:])~[\w.@/+:-]*"), re.compile("['\"]")
AMBIGUOUS = re.compile("Ambiguous value for argument '(.*)'")
ABOUT = re.compile(r"^\s*(full_key: *$|(object|reference)_type=.*$)", re.MULTILINE)
"""Lines in which OmegaConf names classes."""
FOLDER_FLAGS = ("--config-dir", "-cd")
COMMANDS = ("run", "multirun", "cfg", "info", "shell_completion")
"""Flags of which a command has one."""
OF_A_SHOWN_CONFIG = ("--resolve", "--package", "-p")
OF_A_COMMAND = ("name", "sweep", "results", "outputs", "wandb", "table")
"""Settings of which a sweep has one value."""
OWN_SWEEPERS = ("grid", "basic")
OWN_LAUNCHERS = ("cells", "dask")
"""Launchers that plan a sweep: in this process, or with the workers of a cluster."""
WITHOUT_END = "hydra.callbacks lacks `finish`, which makes a sweep's table; add others with +"
FULL_ERROR = "HYDRA_FULL_ERROR"
WIDE = 200
"""Width of the output in columns if it is not a terminal."""

_shows_where = False
"""Whether an InputError is raised with its traceback; set by `main`."""
_watcher: Watcher | None = None
"""Shows the progress of a sweep; in the command's own process, once the sweep has begun."""
_sweep: Sweep | None = None
"""The sweep that runs."""


def experiment_names() -> list[str]:
    """Names of all experiments, as a command accepts them."""
    return sorted(experiments())


def composed(*overrides: str) -> DictConfig:
    """The configuration of a sweep with these overrides, not resolved."""
    publish()
    with opened(conf_dir()):
        words = judged_in_cells(with_checked_folders(carried(overrides)))
        return compose("config", overrides=unswept(words), return_hydra_config=True)


def cell_config(*overrides: str) -> dict[str, Any]:
    """The resolved configuration of one cell.

    Raises:
        InputError: an override is malformed or names something unknown, or there are several cells.
    """
    configs = cell_configs(*overrides)
    if len(configs) > 1:
        raise InputError(
            f"{configs[0]['name']} has {len(configs)} cells; repro.sweep({{}}, ...) runs them, "
            "and a setting that differs in them chooses one"
        )
    return configs[0]


def cell_configs(*overrides: str) -> list[dict[str, Any]]:
    """The resolved configurations of the cells that a command with these overrides has.

    Raises:
        InputError: an override is malformed or names something unknown, or an experiment has no cells.
    """
    try:
        with hydra_lock:
            config = composed(*carried(overrides, sweep=False))
            if (section := table_section(config)) and computes_nothing(section):
                raise InputError(f"{config.name} has no cells; the command makes its page")
            if axes(config):
                with planning(conf_dir()) as plan:
                    return [*map(plan.cell, jobs_of(config, overrides))]
            HydraConfig.instance().set_config(config)  # labels may name the choices that were made
            return [plain(config)]
    except (HydraException, OmegaConfBaseException, RecursionError) as wrong:
        raise InputError(explain(wrong)) from wrong


class Finish(Callback):
    """Hydra callback that checks where a run writes, and ends a sweep: its cells, table and files."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Exit with 2 before Hydra makes a folder for a run that must not write there."""
        _require_run(config)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Check the table and the launcher, and watch the cells."""
        _require_run(config, sweeps=True)

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Collect the notes of all cells; exit with 1 if a cell or the table failed."""
        assert _watcher is not None
        _watcher.close()
        try:
            if finish(config, _watcher):
                sys.exit(1)
        except InputError as wrong:  # an error of the table; all records are kept
            tell_error(str(wrong))
            sys.exit(1)
        except Exception:  # Hydra would turn an error here into a warning and a success
            traceback.print_exc()
            sys.exit(1)


def _require_run(config: DictConfig, sweeps: bool = False) -> None:
    """Exit with 2 and one sentence if a run's mode, folders or tracking, or a sweep's table, are wrong.

    The folders of the configuration are written out, before Hydra makes them.
    """
    global _watcher, _sweep
    _sweep = None
    try:
        checked_mode(plain_value(config, "sweep"))
        places = {name: plain_value(config, name) for name in ("name", *FOLDERS, "data_dir", "wandb")}
        check_places(places)
        if config.hydra.job.chdir:
            raise InputError(
                "hydra.job.chdir is true, and every cell would have results and outputs of its own below its "
                "job's folder; leave it out, since folders are relative to where the command starts"
            )
        part = config.hydra.sweep if sweeps else config.hydra.run
        with read_write(config), read_write(part):
            for name in FOLDERS:
                config[name] = from_home(places[name])
            part.dir = from_home(part.dir)
        if sweeps and config.sweep != "list":
            Tracker.parse(places["wandb"], Path(config.outputs)).check()
        _require_sweeper(config, sweeps)
        if not sweeps:
            for component, settings in (config.get("beside") or {}).items():
                raise InputError(
                    f"{config.name} has no cells, so none for {component}.{next(iter(settings))}"
                )
            return
        if (section := table_section(config)) and not computes_nothing(section):
            command = asked(config)
            command.require_rows(command.spec(section))
        launcher = str(config.hydra.runtime.choices["hydra/launcher"])
        if launcher not in OWN_LAUNCHERS:
            raise InputError(unknown("hydra/launcher", launcher, OWN_LAUNCHERS))
        _watcher = Watcher()
        if config.sweep != "list":
            _watcher.start()
    except (InputError, OmegaConfBaseException, OSError) as wrong:  # Hydra would turn them into a warning
        if _shows_where:
            traceback.print_exc()
        tell_error(" ".join(explain(wrong).split()))
        sys.exit(2)


def _require_sweeper(config: DictConfig, sweeps: bool) -> None:
    """InputError for another sweeper, several values of what a sweep has once, or a sweep's own settings."""
    sweeper = str(config.hydra.runtime.choices["hydra/sweeper"])
    if sweeper not in OWN_SWEEPERS:
        raise InputError(
            f"{unknown('hydra/sweeper', sweeper, OWN_SWEEPERS)}; they list the values that -m goes through"
        )
    task: Any = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
    overrides = [parsed(str(each)) for each in task]
    varied = {each.key_or_group for each in overrides if each.is_sweep_override()} | axes(config)
    for name in sorted(varied):
        if name.partition(".")[0] in OF_A_COMMAND:
            raise InputError(
                f"{name} has several values, and a sweep has one {name}; run the command for each"
            )
    for override in () if sweeps else map(str, config.hydra.overrides.hydra):
        if re.match(r"[+~]*hydra[./](launcher|sweep(er)?)\b", override):
            raise InputError(f"{override} is for sweeps, and this is one cell; add -m, or leave it out")


def run_cells(
    config: DictConfig,
    loader: ConfigLoader,
    jobs: Sequence[Sequence[str]],
    first: int,
    engine: AbstractContextManager[Engine] | None = None,
) -> None:
    """Run the cells of a sweep, in this process or with an engine, which is opened for it.

    Args:
        config: the sweep's configuration.
        loader: composes its cells.
        jobs: the overrides of each cell, of which the first has the number `first`.

    Raises:
        InputError: the callback that ends a sweep is left out; or of a table without cells.
    """
    global _sweep
    if _watcher is None:
        raise InputError(WITHOUT_END)
    quiet()
    with env_override(dict(config.hydra.job.env_set)):
        words = _typed(config.hydra)
        if config.table:  # a draft that a method does not take still names its row
            words = [word for word in words if not word.startswith("model@draft=")]
        unread = UnreadWords(words)
        plan = sweep_plan(config, loader, jobs)

        def cells() -> Iterator[PlannedCell]:
            for number, overrides in enumerate(jobs, first):
                yield plan_cell(plan, number, overrides, unread)
            _require_used(config, unread)

        _watcher.announced = max(_watcher.announced, first + len(jobs))
        _sweep = _sweep or Sweep(plain(config, "labels"), screen(), asked(config).folder)
        with nullcontext() if engine is None or config.sweep == "list" else engine as workers:
            _sweep.run(cells(), _watcher, workers)


def sweep_plan(config: DictConfig, loader: ConfigLoader, jobs: Sequence[Sequence[str]]) -> CellPlan:
    """The plan of a sweep's cells; arguments as of `run_cells`."""
    of_hydra = [str(override) for override in config.hydra.overrides.hydra]

    def composed(choices: list[str]) -> DictConfig:
        cell = loader.load_sweep_config(config, choices)
        experiment = cell.hydra.runtime.choices.get(EXPERIMENT)
        if experiment != config.hydra.runtime.choices.get(EXPERIMENT) and cell.grid:
            raise InputError(f"experiment {experiment} has a grid, which no cell can run; run it by itself")
        return cell

    return CellPlan(composed, lambda key: has_group(loader, key, of_hydra), shared_by(jobs))


def plan_cell(plan: CellPlan, number: int, overrides: Sequence[str], unread: UnreadWords) -> PlannedCell:
    """Plan a cell, whose configuration may be invalid; HydraException if it cannot be composed."""
    section = plan.composed(overrides).table
    if section and computes_nothing(section):
        unread.see_unread(OF_NO_CELL)
        whole = plan.unresolved(overrides)
        named = {"method": str(whole.name)}
        return PlannedCell(number, overrides, plan.cell(overrides), named, table=table_section(whole))
    try:
        config = plan.cell(overrides)
        unread.see(config)
        return planned(number, overrides, config)
    except (InputError, OmegaConfBaseException) as wrong:
        return PlannedCell(number, overrides, None, _labels(plan.unresolved(overrides)), str(wrong))


def _require_used(config: DictConfig, unread: UnreadWords) -> None:
    """InputError for a word of the command that no cell reads.

    Or for a label of the table that no cell of the experiment's whole sweep has.
    """
    unread.require_none()
    section = table_section(config)
    if section is None or computes_nothing(section) or not asked(config).whole or _watcher is None:
        return
    known = _watcher.label_names()
    spec = asked(config).spec(section)
    parts = (part for column in spec.columns for part in (column.where, column.over))
    for name in (*spec.rows.by, *spec.where, *(name for part in parts for name in part)):
        if name not in known:
            raise InputError(f"in table {spec.experiment!r} {unknown('label', name, known)}")


def finish(config: DictConfig, watched: Watcher) -> int:
    """End a sweep: print and write its table. Returns the number of cells that failed or left no note."""
    results = dict(sorted(watched.finished.items()))
    lost = [watched.name(number) for number in range(watched.total) if number not in results]
    if lost or not watched.total:
        tell_error(
            f"{len(lost)} of {watched.total} cells of the plan were not run: {_first_of(lost)}\n"
            "  the same command goes on with what is done"
        )
    first: dict[tuple[str, str], Note] = {}  # a cell that is listed twice is shown once
    for number, note in results.items():
        if note.state != "written":
            first.setdefault((note.key or str(number), canonical(note.labels)), note)
    notes = [*first.values()]
    if not notes:
        return len(lost) or int(not watched.total)
    console = screen()
    # The sweep's labels may refer to settings that only its cells have.
    sweep = _sweep or Sweep(plain(config, "labels"), console)
    section, own = table_section(config), None
    if section is None and sweep.mode != "list":
        own = sweep_table(notes, sweep.store, given(config))
    if own is None:
        files = sweep.finish(asked(config), section, notes)
    else:
        own.command.write(own.name, sweep.results)
        files = sweep.finish(Asked(own.name), own.section, own.notes)
    show_files(console, files)
    failed = [note for note in notes if note.error]  # a list has none of cells that failed before
    for error in dict.fromkeys(note.error for note in failed):
        cells = [" ".join(note.labels.values()) for note in failed if note.error == error]
        tell_error(f"{error}\n  in {len(cells)} of {len(notes)} cells: {_first_of(cells)}")
    if (failed or lost) and sweep.mode != "list":
        console.print(go_on([*map(as_typed, sys.argv)], sweep.mode), style="red", soft_wrap=True)
    return len(failed) + len(lost)


def _first_of(cells: Sequence[str]) -> str:
    """Names of cells in a line, as many as fit there."""
    return textwrap.shorten("; ".join(cells), WIDE - 40, placeholder=" ...")


def asked(config: DictConfig) -> Asked:
    """What a sweep's command asked of its experiment."""
    return Asked(str(config.name), matter(str(config.name), _typed(config.hydra)), frozenset(axes(config)))


def axes(config: DictConfig) -> set[str]:
    """The settings that the experiment's own sweep varies: axes of its grid, and those of its cells."""
    sweeper = config.hydra.sweeper
    varied = {str(name) for part in (sweeper.params or {}, *(sweeper.get("cells") or ())) for name in part}
    return varied - {WEIGHTS}  # of own weights the table is another one


def given(config: DictConfig) -> dict[str, str]:
    """The overrides of a sweep's command line as they were typed, by key; of `~NAME` the value is null."""
    pairs = (override.partition("=") for override in _typed(config.hydra))
    return {key: value if equals else DELETED for key, equals, value in pairs}


def _typed(hydra: Any) -> list[str]:
    """The words of a command that are overrides; a reference (`${prompts}`) is not resolved."""
    task = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    return [as_typed(str(override)) for override in task or ()]


def table_section(config: DictConfig) -> dict[str, Any] | None:
    """The experiment's `table:` section, written out; `None` without one."""
    section = plain_value(config, "table") if config.get("table") is not None else {}
    if section == {}:
        return None
    if not isinstance(section, dict):
        raise InputError(f"table is {section!r}; it must be a mapping with title, rows and columns")
    return written_out(str(config.name), {str(name): value for name, value in section.items()})


def task(config: DictConfig) -> None:
    """Run one cell, or write a table that has no cells (claims, facts, drawings).

    An InputError ends it with one sentence.
    """
    try:
        quiet()
        load_components()
        if (HydraConfig.get().callbacks or {}).get("finish", {}).get("_target_") != f"{__name__}.Finish":
            raise InputError(WITHOUT_END)
        section, unread = table_section(config), UnreadWords(_typed(HydraConfig.get()))
        if section and computes_nothing(section):
            unread.see_unread(OF_NO_CELL)
            unread.require_none()
            sweep = Sweep(plain(config), screen())
            show_files(sweep.console, sweep.read(str(config.name), section))
            return
        given = plain(config)
        unread.see(given)
        unread.require_none()
        sweep = Sweep(given, screen())
        with alone(scenario_of(given).labels_of(given)["method"]) as progress:
            note = sweep.cell(given, progress)
        if sweep.mode == "list" or note.state == "skipped":
            sweep.finish(Asked(str(config.name)), None, [note])
            return
        show_note(sweep.console, sweep.store, sweep.outputs, note, sweep.tracked)
        if note.state == "failed":
            raise InputError(note.error)
    except (InputError, OSError) as wrong:  # Hydra would say first which job it was
        if _shows_where:
            raise
        tell_error(explain(wrong))
        sys.exit(2)


def _labels(config: DictConfig) -> dict[str, str]:
    """A cell's labels, whether its configuration is valid or not."""
    own = {str(name): _own_label(config, str(name)) for name in config.labels or ()}
    return scenario_of(config).labels_of(config) | own


def _own_label(config: DictConfig, name: str) -> str:
    try:
        return str(config.labels[name])
    except OmegaConfBaseException as wrong:  # it refers to a setting that this cell lacks
        return type(wrong).__name__


def screen() -> Console:
    """The console for progress and tables; `WIDE` columns if the output is a file or a pipe."""
    narrow = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if narrow else WIDE)


def quiet() -> None:
    """Set the libraries' loggers to ERROR, so that they do not disturb the progress bars."""
    for name in ("transformers", "datasets", "httpx", "evaluate"):
        logging.getLogger(name).setLevel(logging.ERROR)


def tell_error(sentence: str) -> None:
    """Print an error to stderr."""
    print(f"error: {sentence}", file=sys.stderr)


def checked(arguments: list[str]) -> list[str]:
    """The command's arguments, flags first; InputError for an unknown flag or an unknown name.

    What begins with `~`, the home folder, is quoted for Hydra, which cannot read it otherwise.
    """
    arguments = [
        one if QUOTED.search(one) else HOME.sub(lambda place: word(place[0]), one) for one in arguments
    ]
    flags = get_args_parser()._option_string_actions
    takes = {flag: -1 if action.nargs == "?" else int(action.nargs != 0) for flag, action in flags.items()}
    ordered = in_order(arguments, takes)
    for flag in (one.partition("=")[0] for one in ordered if one.startswith("-")):
        if flag in NOT_TAKEN:
            raise InputError(f"{flag} is not taken here: {NOT_TAKEN[flag]}")
    asked = [one for one in ordered if getattr(flags.get(one.partition("=")[0]), "dest", "") in COMMANDS]
    if len({flags[one.partition("=")[0]].dest for one in asked}) > 1:
        raise InputError(
            f"{' and '.join(asked)} exclude each other; leave one out (sweep=list shows a sweep's cells)"
        )
    for flag in OF_A_SHOWN_CONFIG:
        if flag in ordered and not any(re.match("(--cfg|-c|--help|-h)(=|$)", each) for each in ordered):
            raise InputError(
                f"{flag} is for --cfg, which shows a configuration; leave it out, or add --cfg job"
            )
    if {"-sc", "--shell-completion"} & {*ordered}:
        return ordered
    folders = []
    while at := next((n for n, each in enumerate(ordered) if each.partition("=")[0] in FOLDER_FLAGS), -1) + 1:
        flag, _, folder = ordered.pop(at - 1).partition("=")
        folders.append(folder or ordered.pop(at - 1))
        if not Path(folders[-1]).is_dir():
            raise InputError(f"{flag} {folders[-1]}: there is no such folder")
    if not folders and not any(each.lstrip("+").startswith(SEARCH_PATH) for each in ordered):
        check_overrides(ordered)  # of folders beside ours only Hydra knows the names
    sweep = {"-m", "--multirun"} & {*ordered} or any(each.startswith(f"{EXPERIMENT}=") for each in ordered)
    return carried(with_checked_folders(ordered, *map(os.path.abspath, folders)), bool(sweep))


def complete(arguments: list[str]) -> bool:
    """Answer a shell's question for names of a group. Returns whether that was all that was asked."""
    if "install=bash" in arguments:
        arguments[0] = "repro"  # what can be completed; `python -m repro` cannot
        print(KEEP_AT)
    if "query=bash" not in arguments:
        return False
    words = completed(os.environ.get("COMP_LINE", ""))
    if words is not None:
        print(*words)
    return words is not None


def explain(wrong: Exception) -> str:
    """An error of the command line or of the disk as a sentence that names the valid choices."""
    cause = wrong.__cause__
    if isinstance(wrong, InputError):
        return str(wrong)
    if isinstance(wrong, RecursionError):
        return "the defaults list of a configuration file leads back to the file"
    if isinstance(wrong, MissingConfigException) and wrong.options:
        group, _, name = str(wrong.missing_cfg_file).rpartition("/")
        return no_such(group, name, wrong.options)
    if isinstance(cause, (ConfigAttributeError, ConfigKeyError)) and isinstance(
        cause.parent_node, DictConfig
    ):
        above = str(cause.full_key).rpartition(".")[0]
        return no_setting(above, str(cause.key), cause.parent_node)
    if isinstance(wrong, OSError) and wrong.filename:
        return file_error(wrong)
    if isinstance(wrong, OverrideParseException):
        return unreadable(str(wrong.override))
    if several := AMBIGUOUS.search(str(wrong)):
        key, _, value = several[1].partition("=")
        quoted = f"{key}='\"{value}\"'"
        return f"{several[1]} has several values: -m runs a cell for each, and quotes make it one: {quoted}"
    parts = [" ".join(ABOUT.sub("", str(part)).split()) for part in (wrong, cause or "")]
    return parts[0] if parts[1] in parts[0] else ": ".join(filter(None, parts))


def main() -> None:
    """The command `python -m repro`. An input error prints one sentence; HYDRA_FULL_ERROR=1 its traceback."""
    global _shows_where, _watcher
    _watcher = None
    _shows_where = whole = bool(os.environ.get(FULL_ERROR))
    os.environ[FULL_ERROR] = "1"  # Hydra then raises its errors, which are explained here
    try:
        sys.argv[1:] = checked(sys.argv[1:])
        if {"--help", "-h"} & set(sys.argv[1:]):
            print(help_text())
            return
        if complete(sys.argv):
            return
        publish()
        with stopping():
            commands = by_experiment(sys.argv[1:])
            run = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(task)
            failed: list[SystemExit] = []
            for command in commands:
                sys.argv[1:] = judged_in_cells(command)
                try:
                    run()
                except SystemExit as end:  # the next experiment has its own cells
                    failed += [end] if end.code else []
        if failed:
            raise failed[0]
    except (InputError, HydraException, OmegaConfBaseException, OSError, RecursionError) as wrong:
        if whole:
            raise
        tell_error(explain(wrong))
        sys.exit(2)
    except KeyboardInterrupt as stop:
        if whole:
            raise
        if _watcher is not None:
            _watcher.close()
        if _sweep is not None:
            _sweep.tracker.close()
        print(stopped([*map(as_typed, sys.argv)], _watcher), file=sys.stderr)
        sys.exit(stop.code if isinstance(stop, Terminated) else 130)
