"""The plan of a command: its cells, each with its overrides and its resolved configuration.

Hydra composes each set of choices once. A cell's values are set in copies of the sections that they change;
what no value changes is resolved once and shared. Must not know how a cell is computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from threading import RLock
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import Container, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from repro.core.errors import InputError
from repro.core.foreign import require_recorded
from repro.core.paths import conf_dir
from repro.experiments.command_words import (
    EXPERIMENT,
    explain,
    judged_in_cells,
    parse,
    with_checked_folders,
    without_sweeps,
)
from repro.experiments.composing import publish
from repro.experiments.hydra_private import set_values, split_key
from repro.experiments.pages import computes_nothing, written_out
from repro.experiments.tables import Asked, matter
from repro.experiments.unread import UNREAD_BY_PAGES, UnreadWords
from repro.reports.spec.beside import as_typed, carry_all
from repro.reports.spec.experiment import experiments
from repro.reports.spec.spec import TableSpec
from repro.scenarios.registry import scenario_of
from repro.scenarios.sections import WEIGHTS

SWEEP_SECTIONS = frozenset({"hydra", "grid", "table", "beside"})
"""Sections, which are top-level entries, that no cell has."""

CACHED_CHOICES = 64
"""Sets of choices whose configurations are kept; each takes about a megabyte."""


def plain(config: DictConfig, *more_omitted: str) -> dict[str, Any]:
    """Resolve a configuration into plain dictionaries, without `SWEEP_SECTIONS` and `more_omitted`."""
    omitted = {*SWEEP_SECTIONS, *more_omitted}
    return {str(name): plain_value(config, name) for name in config if name not in omitted}


def plain_value(container: Any, name: Any) -> Any:
    """An entry of a configuration as plain data; OmegaConfBaseException if it is missing or unresolvable."""
    value = container[name]
    if not isinstance(value, Container):
        return value
    return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)


def entry_at(config: Mapping[str, Any], key: str) -> Any:
    """The entry of a plain configuration with this dotted key; `None` if there is none."""
    entry: Any = config
    for part in split_key(key):
        if not isinstance(entry, Mapping):
            return None
        entry = entry.get(part)
    return entry


class CellPlan:
    """The configurations of a command's cells.

    Attributes:
        compose: makes the configuration, with its section `hydra`, of overrides.
        is_group: whether a key is that of a group, whose overrides are choices.
        shared: overrides of all cells, which are composed with the choices.
    """

    def __init__(
        self,
        compose: Callable[[list[str]], DictConfig],
        is_group: Callable[[str], bool],
        shared_overrides: frozenset[str] = frozenset(),
    ) -> None:
        self.shared = shared_overrides
        self._is_group = cache(is_group)
        self._composed = lru_cache(CACHED_CHOICES)(lambda choices: Choices(compose([*choices])))

    def cell(self, overrides: Sequence[str]) -> dict[str, Any]:
        """The resolved configuration of a cell. Cells share what is equal; nobody changes it.

        Raises:
            HydraException: it cannot be composed.
            OmegaConfBaseException: it cannot be resolved.
        """
        choices, values = self._split(overrides)
        return choices.cell(values)

    def unresolved_config(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration of a cell as Hydra composes it; HydraException if it cannot be composed."""
        choices, values = self._split(overrides)
        return choices.with_values(values)

    def composed(self, overrides: Sequence[str]) -> DictConfig:
        """What a cell's choices alone are composed to, which nobody changes."""
        return self._split(overrides)[0].config

    def jobs(self, command: Sequence[str]) -> list[tuple[str, ...]]:
        """The overrides of each cell of a sweep whose command stands in results.

        Raises:
            InputError: one is no setting; the results may be another's.
        """
        overrides = judged_in_cells(carry_all(require_recorded(command)))
        return jobs_of(self.composed(without_sweeps(overrides)), overrides)

    def _split(self, overrides: Sequence[str]) -> tuple[Choices, list[Override]]:
        values = [text for text in overrides if text not in self.shared and not self._chooses(text)]
        return self._composed(tuple(text for text in overrides if text not in values)), [*map(parse, values)]

    def _chooses(self, override: str) -> bool:
        return self._is_group(parse(override).key_or_group)


class Choices:
    """What a set of choices is composed to, from which cells take what their values leave as it is."""

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        self._names = [str(name) for name in config if name not in SWEEP_SECTIONS]
        self._refers = {str(name): self._named_in(_references(config._get_node(name))) for name in config}
        self._resolved: dict[str, Any] = {}

    def cell(self, values: Sequence[Override]) -> dict[str, Any]:
        """The resolved configuration with these values; errors as of `CellPlan.cell`."""
        sections = self._changed_sections(values)
        patch = self.with_values(values, self._with_referred(sections))
        with self._known_to_hydra():
            for name in self._names:
                if name not in sections and name not in self._resolved:
                    self._resolved[name] = plain_value(self.config, name)
            updates = {
                str(name): plain_value(patch, name) for name in patch if name in sections - SWEEP_SECTIONS
            }
        order = [name for name in self._names if name in updates or name not in sections]
        return {name: self._resolved.get(name) for name in order} | updates

    def with_values(self, values: Sequence[Override], sections: Iterable[str] | None = None) -> DictConfig:
        """A copy of sections, or all, in which these values are set; HydraException if one does not fit."""
        names = [*map(str, self.config)] if sections is None else [*sections]
        config: DictConfig = OmegaConf.masked_copy(self.config, names)
        OmegaConf.set_struct(config, True)
        set_values([*values], config)
        return config

    def _changed_sections(self, values: Sequence[Override]) -> set[str]:
        """The sections in which values are set, and those that refer to one of them."""
        sections = {value.key_or_group.partition(".")[0] for value in values}
        if not sections <= self._refers.keys() or any(map(self._is_set_elsewhere, values)):
            return {*self._refers, *sections}  # so that an error names all that is there
        sections |= self._named_in(str(value.input_line) for value in values if "${" in str(value.input_line))
        while users := {name for name, mentions in self._refers.items() if mentions & sections} - sections:
            sections |= users
        return sections

    def _with_referred(self, sections: set[str]) -> set[str]:
        """Sections, and those to which they refer."""
        while mentions := {name for section in sections for name in self._refers.get(section, ())} - sections:
            sections = sections | mentions
        return sections & self._refers.keys()

    def _is_set_elsewhere(self, value: Override) -> bool:
        """Whether an override goes through a reference (`alias: ${sampling}`, and `alias.top_p` is set)."""
        node: Any = self.config
        for key in split_key(value.key_or_group)[:-1]:
            node = node._get_node(key, validate_access=False) if isinstance(node, DictConfig) else None
            if node is None or node._is_none() or node._is_missing():
                return False
            if node._is_interpolation():
                return True
        return False

    def _named_in(self, texts: Iterable[str]) -> set[str]:
        """The sections that references name, `${weights}` by its resolver too; all, if one is computed."""
        text = " ".join(texts).replace("${own_or:", "${weights own_or:")
        if re.search(r"\$\{[\w.]*\$\{", text):
            return {*map(str, self.config)}
        names = {*re.findall(r"\w+(?!\w|:)", text)}
        return {str(name) for name in self.config if name in names}

    @contextmanager
    def _known_to_hydra(self) -> Iterator[None]:
        """Within the block, `${hydra:runtime.choices.method}` names these choices."""
        instance: Any = HydraConfig.instance()
        earlier_config, instance.cfg = instance.cfg, self.config
        try:
            yield
        finally:
            instance.cfg = earlier_config


def _references(node: Any) -> Iterator[str]:
    """The references in an entry, as they are written."""
    if node._is_interpolation():
        yield str(node._value())
    elif isinstance(node, DictConfig | ListConfig) and not (node._is_none() or node._is_missing()):
        keys: Iterable[Any] = node if isinstance(node, DictConfig) else range(len(node))
        for key in keys:
            yield from _references(node._get_node(key))


def shared_by(jobs: Sequence[Sequence[str]]) -> frozenset[str]:
    """The overrides of all cells, which are set first, without those of a section that cells set apart."""
    shared_overrides = frozenset(jobs[0]).intersection(*jobs)
    varied_sections = {*map(_section, set().union(*jobs) - shared_overrides)}
    return frozenset(override for override in shared_overrides if _section(override) not in varied_sections)


def _section(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].partition(".")[0]


def jobs_of(config: DictConfig, overrides: Iterable[str]) -> list[tuple[str, ...]]:
    """The overrides of each cell of a sweep with this configuration and command."""
    return [tuple(job) for job in instantiate(config.hydra.sweeper).jobs(overrides)]


hydra_lock = RLock()
"""Held while Hydra composes, which has one state for all threads of a process."""


@contextmanager
def open_hydra(conf: Path) -> Iterator[ConfigLoader]:
    """Hydra with a folder like `conf/`, also within a command that it runs: its own is back afterwards."""
    with hydra_lock:
        outer_hydra, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
        try:
            with initialize_config_dir(str(conf), version_base="1.3"):
                yield GlobalHydra.instance().config_loader()
        finally:
            GlobalHydra.instance().hydra = outer_hydra


@contextmanager
def planning(conf: Path) -> Iterator[CellPlan]:
    """A plan of the cells of commands, with a folder like `conf/`."""
    with open_hydra(conf) as loader:
        yield CellPlan(
            lambda choices: compose("config", choices, return_hydra_config=True),
            lambda group: has_group(loader, group),
        )


def has_group(loader: ConfigLoader, key: str, overrides: Sequence[str] = ()) -> bool:
    """Whether there is a group of this name, with the folders that overrides of Hydra's settings add."""
    return "." not in key and bool(loader.get_group_options(key, None, "config", [*overrides]))


# --- what a command asks ------------------------------------------------------------------------------------


def experiment_names() -> list[str]:
    """Names of all experiments, as a command accepts them."""
    return sorted(experiments())


def composed(*overrides: str) -> DictConfig:
    """The configuration of a sweep with these overrides, not resolved."""
    publish()
    with open_hydra(conf_dir()):
        words = judged_in_cells(with_checked_folders(carry_all(overrides)))
        return compose("config", overrides=without_sweeps(words), return_hydra_config=True)


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
            config = composed(*carry_all(overrides, sweep=False))
            if isinstance(table_section(config), dict):
                raise InputError(f"{config.name} has no cells; the command makes its page")
            if axes(config):
                with planning(conf_dir()) as plan:
                    return [*map(plan.cell, jobs_of(config, overrides))]
            HydraConfig.instance().set_config(config)  # labels may name the choices that were made
            return [plain(config)]
    except (HydraException, OmegaConfBaseException, RecursionError) as wrong:
        raise InputError(explain(wrong)) from wrong


def axes(config: DictConfig) -> set[str]:
    """The settings that the experiment's own sweep varies: axes of its grid, and those of its cells."""
    sweeper = config.hydra.sweeper
    names = {str(name) for part in (sweeper.params or {}, *(sweeper.get("cells") or ())) for name in part}
    return names - {WEIGHTS}  # of own weights the table is another one


def words_of(hydra: Any) -> list[str]:
    """The words of a command that are overrides; a reference (`${prompts}`) is not resolved."""
    task = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    return [as_typed(str(override)) for override in task or ()]


def request(config: DictConfig) -> Asked:
    """What a sweep's command asked of its experiment."""
    return Asked(str(config.name), matter(str(config.name), words_of(config.hydra)), frozenset(axes(config)))


def table_section(config: DictConfig) -> TableSpec | dict[str, Any] | None:
    """The experiment's table; of a page without cells its section, written out; `None` without either."""
    section = plain_value(config, "table") if config.get("table") is not None else {}
    if section == {}:
        return None
    if not isinstance(section, dict):
        raise InputError(f"table is {section!r}; it must be a mapping with title, rows and columns")
    return written_out(str(config.name), {str(name): value for name, value in section.items()})


# --- the cells of a sweep -----------------------------------------------------------------------------------


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

    @property
    def loads(self) -> tuple[str, ...]:
        """Its target, draft and dataset, which the next cell need not load again if it has the same."""
        return tuple(self.labels.get(name, "") for name in ("target", "draft", "dataset"))

    @property
    def chosen(self) -> dict[str, Any]:
        """The values of its overrides, by key."""
        return {} if self.config is None else chosen_values(self.config, self.overrides)


def sweep_plan(config: DictConfig, loader: ConfigLoader, jobs: Sequence[Sequence[str]]) -> CellPlan:
    """The plan of a sweep's cells, of its configuration, Hydra's loader and the overrides of each cell."""
    hydra_overrides = [str(override) for override in config.hydra.overrides.hydra]

    def compose_cell(choices: list[str]) -> DictConfig:
        cell = loader.load_sweep_config(config, choices)
        experiment = cell.hydra.runtime.choices.get(EXPERIMENT)
        if experiment != config.hydra.runtime.choices.get(EXPERIMENT) and cell.grid:
            raise InputError(f"experiment {experiment} has a grid, which no cell can run; run it by itself")
        return cell

    return CellPlan(compose_cell, lambda key: has_group(loader, key, hydra_overrides), shared_by(jobs))


def plan_cell(
    plan: CellPlan, cell_number: int, overrides: Sequence[str], unread_words: UnreadWords
) -> PlannedCell:
    """Plan a cell, whose configuration may be invalid; HydraException if it cannot be composed."""
    section = plan.composed(overrides).table
    if section and computes_nothing(section):
        unread_words.see_unread(UNREAD_BY_PAGES)
        unresolved = plan.unresolved_config(overrides)
        labels, page = {"method": str(unresolved.name)}, table_section(unresolved)
        assert isinstance(page, dict)
        return PlannedCell(cell_number, overrides, plan.cell(overrides), labels, table=page)
    try:
        config = plan.cell(overrides)
        unread_words.see(config)
        return plan_resolved(cell_number, overrides, config)
    except (InputError, OmegaConfBaseException) as wrong:
        return PlannedCell(
            cell_number, overrides, None, _labels(plan.unresolved_config(overrides)), str(wrong)
        )


def plan_resolved(cell_number: int, overrides: Sequence[str], config: Mapping[str, Any]) -> PlannedCell:
    """A cell whose configuration is resolved."""
    labels = scenario_of(config).labels_of(config)
    own_labels = {str(name): str(label) for name, label in (config["labels"] or {}).items()}
    return PlannedCell(cell_number, overrides, config, labels | own_labels)


def _labels(config: DictConfig) -> dict[str, str]:
    """A cell's labels, whether its configuration is valid or not."""
    own_labels = {str(name): _own_label(config, str(name)) for name in config.labels or ()}
    return scenario_of(config).labels_of(config) | own_labels


def _own_label(config: DictConfig, name: str) -> str:
    try:
        return str(config.labels[name])
    except OmegaConfBaseException as wrong:  # it refers to a setting that this cell lacks
        return type(wrong).__name__


def chosen_values(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The values of a cell's overrides, by key: numbers as the cell has them, whatever their spelling."""
    values = {}
    for override in map(parse, overrides):
        value = override.value()
        if isinstance(value, (int, float)):
            entry = entry_at(config, override.key_or_group)
            value = entry if isinstance(entry, (int, float)) else value
        elif value is not None and not isinstance(value, (list, dict)):
            value = str(value)
        values[override.get_key_element()] = value
    return values
