"""The cells of a command: the overrides of each, and its resolved configuration.

Hydra composes each set of choices once. A cell's values are set in copies of the sections that they change;
what no value changes is resolved once and shared. Must not know what a setting means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from threading import RLock
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.utils import instantiate
from omegaconf import Container, DictConfig, ListConfig, OmegaConf

from repro.core.foreign import require_recorded
from repro.experiments.command_words import judged_in_cells, parsed, unswept
from repro.experiments.hydra_private import set_values, split_key
from repro.reports.spec.beside import carried

OF_THE_SWEEP = frozenset({"hydra", "grid", "table", "beside"})
"""Sections, which are top-level entries, that no cell has."""

COMPOSED = 64
"""Sets of choices whose configurations are kept; each takes about a megabyte."""


def plain(config: DictConfig, *without: str) -> dict[str, Any]:
    """Resolve a configuration into plain dictionaries, without `OF_THE_SWEEP` and `without`."""
    left_out = {*OF_THE_SWEEP, *without}
    return {str(name): plain_value(config, name) for name in config if name not in left_out}


def plain_value(container: Any, name: Any) -> Any:
    """An entry of a configuration as plain data; OmegaConfBaseException if it is missing or unresolvable."""
    value = container[name]
    if not isinstance(value, Container):
        return value
    return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)


def selected(config: Mapping[str, Any], key: str) -> Any:
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
        shared: frozenset[str] = frozenset(),
    ) -> None:
        self.shared = shared
        self._is_group = cache(is_group)
        self._composed = lru_cache(COMPOSED)(lambda choices: Choices(compose([*choices])))

    def cell(self, overrides: Sequence[str]) -> dict[str, Any]:
        """The resolved configuration of a cell. Cells share what is equal; nobody changes it.

        Raises:
            HydraException: it cannot be composed.
            OmegaConfBaseException: it cannot be resolved.
        """
        choices, values = self._split(overrides)
        return choices.cell(values)

    def unresolved(self, overrides: Sequence[str]) -> DictConfig:
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
        overrides = judged_in_cells(carried(require_recorded(command)))
        return jobs_of(self.composed(unswept(overrides)), overrides)

    def _split(self, overrides: Sequence[str]) -> tuple[Choices, list[Override]]:
        values = [text for text in overrides if text not in self.shared and not self._chooses(text)]
        return self._composed(tuple(text for text in overrides if text not in values)), [*map(parsed, values)]

    def _chooses(self, override: str) -> bool:
        return self._is_group(parsed(override).key_or_group)


class Choices:
    """What a set of choices is composed to, from which cells take what their values leave as it is."""

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        self._names = [str(name) for name in config if name not in OF_THE_SWEEP]
        self._refers = {str(name): self._named_in(_references(config._get_node(name))) for name in config}
        self._resolved: dict[str, Any] = {}

    def cell(self, values: Sequence[Override]) -> dict[str, Any]:
        """The resolved configuration with these values; errors as of `CellPlan.cell`."""
        changed = self._changed(values)
        part = self.with_values(values, self._with_referred(changed))
        with self._known_to_hydra():
            for name in self._names:
                if name not in changed and name not in self._resolved:
                    self._resolved[name] = plain_value(self.config, name)
            fresh = {str(name): plain_value(part, name) for name in part if name in changed - OF_THE_SWEEP}
        left = [name for name in self._names if name in fresh or name not in changed]
        return {name: self._resolved.get(name) for name in left} | fresh

    def with_values(self, values: Sequence[Override], sections: Iterable[str] | None = None) -> DictConfig:
        """A copy of sections, or all, in which these values are set; HydraException if one does not fit."""
        names = [*map(str, self.config)] if sections is None else [*sections]
        config: DictConfig = OmegaConf.masked_copy(self.config, names)
        OmegaConf.set_struct(config, True)
        set_values([*values], config)
        return config

    def _changed(self, values: Sequence[Override]) -> set[str]:
        """The sections in which values are set, and those that refer to one of them."""
        changed = {value.key_or_group.partition(".")[0] for value in values}
        if not changed <= self._refers.keys() or any(map(self._is_set_elsewhere, values)):
            return {*self._refers, *changed}  # so that an error names all that is there
        changed |= self._named_in(str(value.input_line) for value in values if "${" in str(value.input_line))
        while more := {name for name, to in self._refers.items() if to & changed} - changed:
            changed |= more
        return changed

    def _with_referred(self, sections: set[str]) -> set[str]:
        """Sections, and those to which they refer."""
        while more := {name for each in sections for name in self._refers.get(each, ())} - sections:
            sections = sections | more
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
        words = {*re.findall(r"\w+(?!\w|:)", text)}
        return {str(name) for name in self.config if name in words}

    @contextmanager
    def _known_to_hydra(self) -> Iterator[None]:
        """Within the block, `${hydra:runtime.choices.method}` names these choices."""
        instance: Any = HydraConfig.instance()
        before, instance.cfg = instance.cfg, self.config
        try:
            yield
        finally:
            instance.cfg = before


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
    shared = frozenset(jobs[0]).intersection(*jobs)
    varied = {*map(_section, set().union(*jobs) - shared)}
    return frozenset(override for override in shared if _section(override) not in varied)


def _section(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].partition(".")[0]


def jobs_of(config: DictConfig, overrides: Iterable[str]) -> list[tuple[str, ...]]:
    """The overrides of each cell of a sweep with this configuration and command."""
    sweeper = instantiate(config.hydra.sweeper)
    written = [*(f"{name}={value}" for name, value in sweeper.params.items()), *overrides]
    batches = sweeper.split_arguments(OverridesParser.create().parse_overrides(written), None)
    return [tuple(cell) for batch in batches for cell in batch]


hydra_lock = RLock()
"""Held while Hydra composes, which has one state for all threads of a process."""


@contextmanager
def opened(conf: Path) -> Iterator[ConfigLoader]:
    """Hydra with a folder like `conf/`, also within a command that it runs: its own is back afterwards."""
    with hydra_lock:
        outer, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
        try:
            with initialize_config_dir(str(conf), version_base="1.3"):
                yield GlobalHydra.instance().config_loader()
        finally:
            GlobalHydra.instance().hydra = outer


@contextmanager
def planning(conf: Path) -> Iterator[CellPlan]:
    """A plan of the cells of commands, with a folder like `conf/`."""
    with opened(conf) as loader:
        yield CellPlan(
            lambda choices: compose("config", choices, return_hydra_config=True),
            lambda group: has_group(loader, group),
        )


def has_group(loader: ConfigLoader, key: str, overrides: Sequence[str] = ()) -> bool:
    """Whether there is a group of this name, with the folders that overrides of Hydra's settings add."""
    return "." not in key and bool(loader.get_group_options(key, None, "config", [*overrides]))
