"""Hydra plugins: config sources for components and YAML folders, and the composition of a sweep's cells.

In this package only `cli` also knows Hydra. Must not know what a configuration means. Most of it is for
speed: Hydra would parse every file again for every cell, compose each cell twice, and copy all structured
configurations at every look-up.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import field, fields, make_dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_yaml_loader

from hydra_plugins.repro_grid import LATER
from repro.core.errors import InputError
from repro.core.paths import conf_folders
from repro.core.registry import discover, lookup, names
from repro.models.checkpoints.origin import model_file
from repro.reports.spec.experiment import grid_of

COMPANION = "companion/"
DEFAULT_TARGET = "smollm2_135m"
EXPERIMENT = "experiment"
"""The group whose files are named by their path, and say something about the whole configuration."""

Needless = Callable[[str, Any], bool]

_published: list[str] = []


def publish(*groups: str) -> None:
    """Make these registry groups Hydra config groups, and register this module's plugins."""
    load_components()
    _published[:] = groups
    for plugin in (ConfFolder, Components, Models, SearchPath):
        Plugins.instance().register(plugin)
    # Hydra copies its repository, and with it the ConfigStore, at every look-up of an option; nothing changes
    # the copy, so the store itself is returned.
    ConfigStore.__deepcopy__ = lambda store, _: store  # type: ignore[attr-defined]


class SearchPath(SearchPathPlugin):
    """Adds the registered components and the folders of other packages to Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append both, and let `ConfFolder` read every element that is a folder."""
        search_path.append("repro", f"{Components.scheme()}://{','.join(_published)}")
        for folder_of_user in conf_folders()[1:]:
            search_path.append("repro-user", str(folder_of_user))
        search_path.append("repro", f"{Models.scheme()}://")
        for element in search_path.get_path():
            folder = _folder(str(element.path))
            if folder is not None:
                element.path = f"{ConfFolder.scheme()}://{folder}"


def _folder(path: str) -> str | None:
    """The folder of an element of the search path; `None` if it is not a single folder."""
    scheme, _, rest = path.rpartition("://")
    if scheme == "pkg":
        spec = find_spec(rest.replace("/", "."))
        folders = [*(spec.submodule_search_locations or ())] if spec else []
        return folders[0] if len(folders) == 1 else None
    return rest if scheme in ("", "file") else None


class ConfFolder(FileConfigSource):
    """A folder of YAML files, each parsed once in a process and again when it changes.

    Attributes:
        needless: predicate over key and value; matching top-level entries of `_global_` files are dropped.
    """

    DATA: ClassVar = frozenset({"metric", "reference"})
    """Folders of data that no cell's configuration is composed of."""

    needless: ClassVar[ContextVar[Needless]] = ContextVar("needless", default=lambda key, value: False)

    @staticmethod
    def scheme() -> str:
        """The scheme of its paths."""
        return "conf"

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """The groups and configurations of a folder, without folders of data."""
        found = super().list(config_path, results_filter)
        return found if config_path.strip("/") else [name for name in found if name not in self.DATA]

    def load_config(self, config_path: str) -> ConfigResult:
        """The configuration of a file, created anew from the parsed content, since composing changes it.

        Raises:
            ConfigLoadError: there is no such file.
            InputError: it is not YAML, or not a mapping.
        """
        path = os.path.realpath(os.path.join(self.path, self._normalize_file_name(config_path)))
        try:
            stat = os.stat(path)
        except FileNotFoundError as wrong:
            raise ConfigLoadError(f"Config not found : {path}") from wrong
        try:
            header, content = _parsed(path, stat.st_mtime_ns, stat.st_size)
        except (yaml.YAMLError, UnicodeDecodeError) as wrong:
            raise InputError(f"{path} is not YAML: {' '.join(str(wrong).split())}") from wrong
        if not isinstance(content, dict):
            raise InputError(f"{path} must be a mapping and is a {type(content).__name__}")
        group, _, name = config_path.removesuffix(".yaml").partition("/")
        if group == EXPERIMENT:
            header, content = {**header, "package": "_global_"}, {"name": name, **content}
        if header["package"] == "_global_":
            needless = self.needless.get()
            content = with_sweep({key: value for key, value in content.items() if not needless(key, value)})
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(content), dict(header))


def with_sweep(content: Mapping[str, Any]) -> dict[str, Any]:
    """A file's content; one with a `grid` gets the sweep that Hydra makes of it."""
    if not content.get("grid"):
        return dict(content)
    grid = grid_of(content)
    sweeper = {"params": _unresolved(grid.params), "cells": [_unresolved(cell) for cell in grid.choices]}
    return {**content, "hydra": {**content.get("hydra", {}), "mode": "MULTIRUN", "sweeper": sweeper}}


def _unresolved(overrides: Mapping[str, str]) -> dict[str, str]:
    """Overrides whose interpolations (`${labels.width}`) wait for the configuration of each cell."""
    return {name: value.replace("${", LATER) for name, value in overrides.items()}


@cache
def _parsed(path: str, changed: int, size: int) -> tuple[dict[str, str | None], Any]:
    """A file's package header and content; `changed` and `size` are part of the cache key."""
    text = Path(path).read_text(encoding="utf-8")
    content = yaml.load(text, Loader=_loader())
    return ConfigSource._get_header_dict(text[:512]), {} if content is None else content


@cache
def _loader() -> Any:
    """OmegaConf's YAML loader, on the C parser if PyYAML has it."""
    rules = get_yaml_loader()
    return type("Loader", (yaml.CSafeLoader, rules), {}) if yaml.__with_libyaml__ else rules


class Components(ConfigSource):
    """Config source of registered components: the typed fields of a class are its configuration.

    Its path lists the groups, since some launchers use it in a process that has not called `publish`. A
    component's module is imported when it is selected; listing names imports nothing.
    """

    @staticmethod
    def scheme() -> str:
        """The scheme of its paths."""
        return "components"

    @property
    def groups(self) -> list[str]:
        """The published groups, in alphabetical order."""
        return sorted(self.path.split(","))

    def available(self) -> bool:
        """Always true."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Whether a path is a published group or the root."""
        return config_path.strip("/") in ("", *self.groups)

    def is_config(self, config_path: str) -> bool:
        """Whether a path is `group/name` of a registered component."""
        group, name = _split(config_path)
        return group in self.groups and name in _names(group)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Groups at the root, names in a group."""
        group = config_path.strip("/")
        if not group:
            return [] if results_filter == ObjectType.CONFIG else self.groups
        return [] if results_filter == ObjectType.GROUP else _names(group)

    def load_config(self, config_path: str) -> ConfigResult:
        """A component's fields with their types and defaults."""
        group, name = _split(config_path)
        if not self.is_config(config_path):
            raise ConfigLoadError(f"Config not found : {group}/{name}")
        config = OmegaConf.structured(_fields(group, name))
        return ConfigResult(self.provider, self.full_path(), config, {"package": None})


class Models(ConfigSource):
    """Config source of models without a file of their own in `conf/model`.

    `companion/METHOD` is what a method needs beside the default target; any other name is a checkpoint that
    people bring: a folder, a GGUF file, or `org/repo` on the hub.
    """

    @staticmethod
    def scheme() -> str:
        """The scheme of its paths."""
        return "models"

    def available(self) -> bool:
        """Always true."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Never: `ConfFolder` has the group."""
        return False

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Nothing: its names are not known before."""
        return []

    def is_config(self, config_path: str) -> bool:
        """Whether a path names a companion or a checkpoint."""
        group, _, name = config_path.partition("/")
        return group == "model" and (name.startswith(COMPANION) or model_file(name) is not None)

    def load_config(self, config_path: str) -> ConfigResult:
        """A model's file."""
        name = config_path.partition("/")[2]
        if name.startswith(COMPANION):
            method = name.removeprefix(COMPANION)
            needs = lookup("method", method).companion if method else "draft"  # type: ignore[attr-defined]
            content: dict[str, Any] = {"defaults": [f"{DEFAULT_TARGET}_{needs}"]}
        else:
            content = model_file(name) or {}
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(content), {"package": None})


def load_components() -> None:
    """Discover the registered components, ours and those of the entry point group `repro.components`."""
    discover("repro.methods", "repro.data", "repro.metrics")


def _names(group: str) -> list[str]:
    load_components()
    return names(group)


def _split(config_path: str) -> tuple[str, str]:
    group, _, name = config_path.strip("/").removesuffix(".yaml").rpartition("/")
    return group, name


@cache
def _fields(group: str, name: str) -> type:
    """A dataclass with the component's name and its fields."""
    cls = lookup(group, name)
    types = get_type_hints(cls)
    rows: list[Any] = [("name", str, field(default=name))]
    rows += [(f.name, types[f.name], field(default=f.default)) for f in fields(cls)]
    return make_dataclass(cls.__name__, rows)


class Composer(ConfigLoaderImpl):
    """Composes each cell of a sweep once.

    Hydra composes all cells before the first one starts, to find errors early, and each again when it runs.
    This loader caches the first composition. Launchers that start other processes compose again there.
    """

    def __init__(
        self, loader: ConfigLoader, needless: Needless, announce: Callable[[DictConfig], None] | None = None
    ) -> None:
        """Compose as `loader` does.

        Args:
            loader: whose search path is used.
            needless: entries for which `needless(key, value)` is true are left out.
            announce: called with each cell that was composed ahead.
        """
        super().__init__(loader.get_search_path())
        self._needless = needless
        self._announce = announce
        self._ahead: dict[tuple[str, ...], DictConfig] = {}

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """The configuration of one cell; composed at the first call, taken from the cache at the second."""
        asked = tuple(sweep_overrides)
        if asked not in self._ahead:
            self._ahead[asked] = self._composed(master_config, sweep_overrides)
            if self._announce:
                self._announce(self._ahead[asked])
            return self._ahead[asked]
        return self._ahead.pop(asked)

    def _composed(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        changed = {override.lstrip("+~").partition("=")[0].partition(".")[0] for override in sweep_overrides}
        token = ConfFolder.needless.set(lambda key, value: key not in changed and self._needless(key, value))
        try:
            with _uncollected():
                return super().load_sweep_config(master_config, sweep_overrides)
        finally:
            ConfFolder.needless.reset(token)

    def __getstate__(self) -> dict[str, Any]:
        """The state without the cache and `announce`: another process composes again."""
        return {**self.__dict__, "_ahead": {}, "_announce": None}


class SharedCompositions:
    """The cells of sweeps; those with the same choices of groups share a composition.

    What else a cell's overrides set is set afterwards, as Hydra itself does.
    """

    def __init__(self, loader: ConfigLoaderImpl) -> None:
        """Compose as `loader` does, which `composing_in` has opened."""
        self._loader = loader
        self._parser = OverridesParser.create()
        self._known: dict[tuple[str, ...], DictConfig] = {}

    def cells(self, overrides: Sequence[str]) -> list[tuple[str, ...]]:
        """The overrides of each cell of a command's sweep."""
        sweeper = instantiate(compose("config", [*overrides], return_hydra_config=True).hydra.sweeper)
        written = [*(f"{name}={value}" for name, value in sweeper.params.items()), *overrides]
        batches = sweeper.split_arguments(self._parser.parse_overrides(written), None)
        return [tuple(cell) for batch in batches for cell in batch]

    def config(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration of one cell, not resolved."""
        choices: list[Override] = []
        settings: list[Override] = []
        for override in self._parser.parse_overrides([*overrides]):
            is_choice = self._loader.repository.group_exists(override.key_or_group)
            (choices if is_choice else settings).append(override)
        key = tuple(str(override.input_line) for override in choices)
        if key not in self._known:
            with _uncollected():
                self._known[key] = compose("config", [*key])
        config = deepcopy(self._known[key])
        ConfigLoaderImpl._apply_overrides_to_config(settings, config)
        return config


@contextmanager
def composing_in(conf: Path, needless: Needless) -> Iterator[SharedCompositions]:
    """Compose cells of a folder like `conf/`, without the entries of experiments that are `needless`."""
    token = ConfFolder.needless.set(needless)
    try:
        with initialize_config_dir(str(conf), version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            assert isinstance(loader, ConfigLoaderImpl)
            yield SharedCompositions(loader)
    finally:
        ConfFolder.needless.reset(token)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable garbage collection, which would scan all configurations repeatedly during composition."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
