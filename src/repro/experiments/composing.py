"""Hydra plugins: config sources for components and YAML folders, and the composition of a sweep's cells.

In this package only `cli` also knows Hydra. Must not know what a configuration means. Most of it is for
speed: Hydra would parse every file again for every cell, compose each cell twice, and copy all structured
configurations at every look-up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from copy import copy, deepcopy
from dataclasses import field, fields, make_dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, Literal, get_origin, get_type_hints

import hydra._internal.hydra
import omegaconf.base
import yaml
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, IConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, grammar_parser
from omegaconf._utils import get_yaml_loader

from hydra_plugins.repro_grid import LATER
from repro.core.errors import InputError
from repro.core.foreign import (
    HYDRA,
    WHOLE,
    require_header,
    require_overrides,
    require_settings,
)
from repro.core.paths import conf_dir, conf_folders
from repro.core.registry import discover, lookup, names
from repro.core.yaml_file import parse_yaml, read_yaml
from repro.experiments.cell_configs import (
    CellConfigs,
    content,
    parsed,
    require_one_choice,
    take_entries,
    top_level,
)
from repro.models.checkpoints.origin import model_file
from repro.reports.spec.experiment import grid_of
from repro.scenarios.sections import CHOSEN, DRAFTS, OWN_WEIGHTS, require_no_names

COMPANION = "companion/"
DEFAULT_TARGET = "smollm2_135m"
EXPERIMENT = "experiment"
"""The group whose files are named by their path."""

WRITTEN = ("overrides", "runtime", "job")
"""The sections of `hydra:` in which Hydra writes what it composes."""

Needless = Callable[[str, Any], bool]

_published: list[str] = []


def publish(*groups: str) -> None:
    """Make these registry groups Hydra config groups, and register this module's plugins."""
    load_components()
    _published[:] = groups
    for plugin in (ConfFolder, Components, Models, SearchPath):
        Plugins.instance().register(plugin)
    hydra._internal.hydra.ConfigLoaderImpl = Loader  # type: ignore[attr-defined]
    # Hydra copies its repository, and with it the ConfigStore, at every look-up of an option; nothing changes
    # the copy, so the store itself is returned.
    ConfigStore.__deepcopy__ = lambda store, _: store  # type: ignore[attr-defined]
    # OmegaConf parses an interpolation each time that it resolves it; nothing changes the tree.
    omegaconf.base.parse = _parsed_interpolation  # type: ignore[attr-defined]
    defaults_list._create_interpolation_map = _interpolation_map  # type: ignore[assignment]


_parsed_interpolation = lru_cache(maxsize=10_000)(grammar_parser.parse)
_every_interpolation_map = defaults_list._create_interpolation_map


def _interpolation_map(overrides: Any, parts: list[Any], self_added: bool) -> Any:
    """What Hydra makes for each defaults list, of those that need it."""
    needed = any(part.is_interpolation() for part in parts)
    return _every_interpolation_map(overrides, parts, self_added) if needed else None


def own_or(own: Any, stand_in: Any, *, _root_: DictConfig) -> Any:
    """What `${own_or:OWN,STAND_IN}` is in a configuration, and in a defaults list with these choices."""
    return own if _root_.get("weights") == OWN_WEIGHTS else stand_in


OmegaConf.register_new_resolver("own_or", own_or, replace=True)


class SearchPath(SearchPathPlugin):
    """Adds the registered components and the folders of other packages to Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append both."""
        search_path.append("repro", f"{Components.scheme()}://{','.join(_published)}")
        for folder_of_user in conf_folders()[1:]:
            search_path.append("repro-user", str(folder_of_user))
        search_path.append("repro", f"{Models.scheme()}://")


class Folders(ConfigSearchPathImpl):
    """A search path whose folders are all read by `ConfFolder`, whoever adds them."""

    def append(self, provider: str, path: str, anchor: Any = None) -> None:
        """Add an element; InputError for a package that is not one folder."""
        scheme, _, rest = path.rpartition("://")
        if scheme == "pkg":
            try:
                spec = find_spec(rest.replace("/", "."))
            except ImportError:
                spec = None
            folders = [*(spec.submodule_search_locations or ())] if spec else []
            if len(folders) != 1:
                raise InputError(f"{path} is not one folder of configuration files")
            rest = folders[0]
        super().append(
            provider, f"{ConfFolder.scheme()}://{rest}" if scheme in ("", "file", "pkg") else path, anchor
        )


class ConfFolder(FileConfigSource):
    """A folder of YAML files, each parsed once in a process and again when it changes.

    Attributes:
        needless: predicate over key and value; matching top-level entries of `_global_` files are dropped.
        ours: folders beside `conf/` and Hydra's own whose files may say anything; those of others may not.
    """

    DATA: ClassVar = frozenset({"metric", "reference"})
    """Folders of data that no cell's configuration is composed of."""

    needless: ClassVar[ContextVar[Needless]] = ContextVar("needless", default=lambda key, value: False)
    ours: ClassVar[set[str]] = {*hydra.conf.__path__}

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
            InputError: it is not YAML, or not a mapping; or it is another's and more than settings.
        """
        if ".." in config_path.split("/"):
            raise InputError(f"{config_path!r} leaves the folder of configuration files {self.path}")
        path = os.path.realpath(os.path.join(self.path, self._normalize_file_name(config_path)))
        try:
            stat = os.stat(path)
        except FileNotFoundError as wrong:
            raise ConfigLoadError(f"Config not found : {path}") from wrong
        package, content = _parsed(path, stat.st_mtime_ns, stat.st_size)
        if not isinstance(content, dict):
            raise InputError(f"{path} must be a mapping and is a {type(content).__name__}")
        group, _, name = config_path.removesuffix(".yaml").partition("/")
        if not _is_ours(self.path):
            require_settings({HYDRA: content} if group == HYDRA else content, path)
            package = require_header(package, group, path)
        if group in WHOLE:
            package = "_global_"
        if group == EXPERIMENT:
            content = {"name": name, **content}
        if package == "_global_":
            require_no_names(content, path)
            needless = self.needless.get()
            content = {key: value for key, value in content.items() if not needless(key, value)}
            content = with_sweep(content, "" if _is_ours(self.path) else path)
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(content), {"package": package})


def _is_ours(folder: str) -> bool:
    return folder in (str(conf_dir()), *ConfFolder.ours)


def with_sweep(content: Mapping[str, Any], foreign: str = "") -> dict[str, Any]:
    """A file's content; one with a `grid` gets the sweep that Hydra makes of it.

    Args:
        content: of a file about the whole configuration.
        foreign: the file's path if it is another's: InputError if its grid varies more than settings.
    """
    if not content.get("grid"):
        return dict(content)
    grid = grid_of(content)
    if foreign:
        parts: list[Mapping[str, Any]] = [grid.params, *grid.choices]
        for part in parts:
            listed = ((n, v if isinstance(v, list) else [v]) for n, v in part.items())
            require_overrides(((name, value) for name, values in listed for value in values), foreign)
    sweeper = {"params": _unresolved(grid.params), "cells": _unresolved(grid.choices)}
    return {**content, "hydra": {**content.get("hydra", {}), "mode": "MULTIRUN", "sweeper": sweeper}}


def _unresolved(overrides: Any) -> Any:
    """Overrides whose interpolations (`${labels.width}`) wait for the configuration of each cell."""
    if isinstance(overrides, dict):
        return {name: _unresolved(value) for name, value in overrides.items()}
    if isinstance(overrides, list):
        return [_unresolved(value) for value in overrides]
    return overrides.replace("${", LATER)


@cache
def _parsed(path: str, changed: int, size: int) -> tuple[str | None, Any]:
    """A file's package header and content; `changed` and `size` are part of the cache key."""
    text = read_yaml(Path(path))
    content = parse_yaml(text, path, _loader())
    try:
        package = ConfigSource._get_header_dict(text[:512])["package"]
    except ValueError as wrong:
        raise InputError(f"{path}, in the lines before its content: {wrong}") from wrong
    return package, {} if content is None else content


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
    types = {
        name: str if get_origin(kind) is Literal else kind  # OmegaConf knows no choices
        for name, kind in get_type_hints(cls).items()
    }
    rows: list[Any] = [("name", str, field(default=name))]
    rows += [(f.name, types[f.name], field(default=f.default)) for f in fields(cls)]
    return make_dataclass(cls.__name__, rows)


class Loader(ConfigLoaderImpl):
    """Hydra's loader, in which no file of others reaches Hydra's own settings."""

    composes_sweeps: ClassVar[bool] = True  # and not cells alone

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        """Search the same places, all folders as `ConfFolder`."""
        folders = Folders()
        for element in config_search_path.get_path():
            folders.append(str(element.provider), str(element.path))
        super().__init__(folders)
        self._looked_at: tuple[list[str], DictConfig] | None = None

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """A configuration; InputError for defaults lists that lead back to themselves, or a list of choices.

        Hydra composes each command's twice: first to look at its mode, without validating its overrides.
        """
        looked_at, self._looked_at = self._looked_at, None
        require_one_choice(overrides, self.repository.group_exists)
        try:
            if not validate_sweep_overrides:
                with suppress(HydraException):
                    found = self._composed(config_name, overrides, RunMode.RUN, from_shell, False)
                    self._looked_at = overrides, found
                    return found
            elif looked_at and looked_at[0] == overrides:
                self.validate_sweep_overrides_legal(
                    OverridesParser.create().parse_overrides(overrides), run_mode, from_shell
                )
                return looked_at[1]
            return self._composed(config_name, overrides, run_mode, from_shell, validate_sweep_overrides)
        except RecursionError:
            raise InputError("the defaults list of a configuration file leads back to the file") from None

    def _composed(self, config_name: str | None, overrides: list[str], *how: Any) -> DictConfig:
        """As Hydra composes; where a sweep varies choices, what is set in them is judged in its cells."""
        try:
            return super().load_configuration(config_name, overrides, *how)
        except HydraException:
            general = [override for override in overrides if not self._sets_in_a_choice(parsed(override))]
            if len(general) == len(overrides) or not self.composes_sweeps:
                raise
            config = super().load_configuration(config_name, general, *how)
            if not self._varies_choices(config, overrides):
                raise
            config.hydra.overrides.task = [o for o in overrides if not parsed(o).is_hydra_override()]
        return config

    def _sets_in_a_choice(self, override: Override) -> bool:
        """Whether an override sets something in a section that a choice fills (`method.length=4`)."""
        section, dot, _ = override.key_or_group.partition(".")
        return bool(dot) and (section in (*CHOSEN, "draft") or bool(DRAFTS.fullmatch(section)))

    def _varies_choices(self, config: DictConfig, overrides: Iterable[str]) -> bool:
        """Whether the command, or the grid of its experiment, varies what is chosen."""
        varied = [parsed(each).key_or_group for each in overrides if parsed(each).is_sweep_override()]
        parts = (config.hydra.sweeper.get("params") or {}, *(config.hydra.sweeper.get("cells") or ()))
        varied += [str(name).partition("@")[0] for part in parts for name in part]
        return any(map(self.repository.group_exists, varied))

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        """A part of a configuration at its place; InputError for another's at Hydra's.

        `ConfFolder` has checked what the part itself says. Its place is the defaults list's that names it.
        """
        part = super()._load_single_config(default, repo)
        if default.package and HYDRA in part.config:
            above = default.parent or ""
            parent = repo.load_config(above) if repo.config_exists(above) else None
            for source in filter(None, (part, parent)):
                scheme, _, folder = source.path.partition("://")
                if scheme == ConfFolder.scheme() and not _is_ours(folder):
                    place = f"{folder}/{above if source is parent else default.config_path}.yaml"
                    require_settings({HYDRA: {}}, place)
        return part


class PartsLoader(Loader):
    """A loader for many configurations.

    A file or component that several have is read and placed once, and an entry that several make of the same
    parts is merged once: they share its node (`take_entries`).
    """

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        """Search these places."""
        super().__init__(config_search_path)
        self._repositories: dict[frozenset[str], CachingConfigRepository] = {}
        self._parts: dict[tuple[frozenset[str], str | None, str | None], ConfigResult] = {}
        self._entries: dict[tuple[Any, ...], Any] = {}
        self._entry = ""
        self._changed: frozenset[str] = frozenset()
        """The top-level entries that overrides choose or set; `ConfFolder.needless` may depend on them."""
        self._set: frozenset[str] = frozenset()
        """Those in which a value is set."""
        self._is_group = cache(self.repository.group_exists)

    def load_configuration(
        self, config_name: str | None, overrides: list[str], *arguments: Any, **more: Any
    ) -> DictConfig:
        """As `Loader`."""
        self._changed = top_level(overrides)
        self._set = top_level(one for one in overrides if not self._is_group(parsed(one).key_or_group))
        return super().load_configuration(config_name, overrides, *arguments, **more)

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], CachingConfigRepository]:
        known = self._repositories.get(self._changed)
        if known is None:
            read, known = super()._parse_overrides_and_create_caching_repo(config_name, overrides)
            self._repositories[self._changed] = known
            return read, known
        return [copy(parsed(override)) for override in overrides], known

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        """A copy of a part, whose nodes composing takes; while an entry is merged, of that alone."""
        part = copy(self._part(default, repo))
        whole: Any = part.config
        name = self._entry
        part.config = OmegaConf.masked_copy(whole, name) if name else deepcopy(whole)
        return part

    def _part(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        key = (self._changed, default.config_path, default.package)
        if key not in self._parts:
            self._parts[key] = super()._load_single_config(default, repo)
        return self._parts[key]

    def _compose_config_from_defaults_list(
        self, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        """Each entry of its parts; of all parts at once if one says more of what another refers to."""
        sources: dict[str, list[ResultDefault]] = {}
        for default in defaults:
            for name in self._part(default, repo).config:
                sources.setdefault(str(name), []).append(default)
        config = OmegaConf.create()
        for name, of in sources.items():
            parts: list[Any] = [self._part(default, repo).config for default in of]
            key = (name, *map(id, parts))
            if key not in self._entries:
                if any(_says_more(part, former) for former, part in combinations(parts, 2)):
                    return super()._compose_config_from_defaults_list(defaults, repo)
                self._entry = name
                try:
                    merged = super()._compose_config_from_defaults_list(of, repo)
                finally:
                    self._entry = ""
                self._entries[key] = merged._get_node(name)
            content(config)[name] = self._own(name, self._entries[key])
        take_entries(config)
        return config

    def _own(self, name: str, entry: Any) -> Any:
        """An entry, or a copy of what will be changed in it."""
        if name in self._set:
            return deepcopy(entry)
        if name != HYDRA:
            return entry
        sections = {**content(entry)}
        own = DictConfig({})
        own.__dict__["_metadata"] = deepcopy(entry._metadata)
        own.__dict__["_content"] = sections | {written: deepcopy(sections[written]) for written in WRITTEN}
        return own


def _says_more(part: DictConfig, former: DictConfig) -> bool:
    """Whether a part has entries where a former one has a reference (`${target}`)."""
    for name in part:
        more, node = (config._get_node(name, validate_access=False) for config in (part, former))
        if not isinstance(more, DictConfig) or _has_no_entries(more) or node is None:
            continue
        if node._is_interpolation():
            return True
        if isinstance(node, DictConfig) and not _has_no_entries(node) and _says_more(more, node):
            return True
    return False


def _has_no_entries(node: DictConfig) -> bool:
    return node._is_none() or node._is_missing() or node._is_interpolation()


class Composer(PartsLoader):
    """Composes what the cells of a sweep choose."""

    composes_sweeps: ClassVar[bool] = False

    def __init__(
        self, loader: ConfigLoader, needless: Needless, settle: Callable[[DictConfig, int], None]
    ) -> None:
        """Search where `loader` does.

        Args:
            loader: whose search path is used.
            needless: entries for which `needless(key, value)` is true are left out.
            settle: called with each configuration that is composed, and the number of the sweep's cells.
        """
        super().__init__(loader.get_search_path())
        self._needless = needless
        self._settle = settle
        self.total = 1

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: list[str], changed: Iterable[str] = ()
    ) -> DictConfig:
        """The configuration of one cell; `changed` are top-level entries that will be changed in it."""
        names = top_level(sweep_overrides).union(changed)
        token = ConfFolder.needless.set(lambda key, value: key not in names and self._needless(key, value))
        try:
            config = super().load_sweep_config(master_config, sweep_overrides)
        finally:
            ConfFolder.needless.reset(token)
        of_sweep, of_cell = (each.hydra.runtime.choices.get(EXPERIMENT) for each in (master_config, config))
        if of_cell != of_sweep and config.grid:
            raise InputError(f"experiment {of_cell} has a grid, which no cell can run; run it by itself")
        self._settle(config, self.total)
        return config

    def cells(self, master_config: DictConfig, shared: frozenset[str] = frozenset()) -> CellConfigs:
        """The configurations of the cells of this sweep, of which all have the overrides `shared`."""

        def compose_choices(choices: list[str], changed: frozenset[str]) -> DictConfig:
            return self.load_sweep_config(master_config, choices, changed)

        return CellConfigs(compose_choices, self.repository.group_exists, shared)
