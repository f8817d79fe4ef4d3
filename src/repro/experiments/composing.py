"""Hydra plugins: where configurations come from. Registered components, models, and folders of YAML files.

Owns what files of others may say (by `core.foreign`). Must not know what a configuration means, nor how cells
are planned.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import field, fields, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, get_origin, get_type_hints

import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from hydra_plugins.repro_grid import POSTPONED
from repro.core.errors import InputError
from repro.core.foreign import (
    HYDRA,
    WHOLE_CELL_GROUPS,
    require_header,
    require_overrides,
    require_settings,
)
from repro.core.paths import conf_folders
from repro.core.reading import parse_yaml, read_yaml
from repro.core.registry import discover, lookup, names
from repro.experiments.command_words import EXPERIMENT, SCHEME, as_conf
from repro.experiments.guide.table_lines import line_content, line_names
from repro.experiments.hydra_private import FileConfigSource, get_yaml_loader
from repro.models.checkpoints.origin import model_file
from repro.reports.spec.experiment import grid_of
from repro.scenarios.registry import GROUPS
from repro.scenarios.sections import OWN_WEIGHTS, require_no_names

COMPANION_PREFIX = "companion/"
CHECKPOINT_GROUP = "model/checkpoint"
MODEL_GROUPS = ("model", CHECKPOINT_GROUP)
DEFAULT_TARGET = "smollm2_135m"
MAIN_PROVIDER = "main"
"""Hydra's name for the folder of `config.yaml`, whose files may say anything; those of others may not."""


def publish() -> None:
    """Make the registered components, models and folders of YAML files sources of Hydra's configurations."""
    load_components()
    for plugin in (ConfFolder, Components, Models, SearchPath):
        Plugins.instance().register(plugin)


def own_or(own_choice: Any, stand_in: Any, *, _root_: DictConfig) -> Any:
    """What `${own_or:OWN,STAND_IN}` is in a configuration, and in a defaults list with these choices."""
    return own_choice if _root_.get("weights") == OWN_WEIGHTS else stand_in


OmegaConf.register_new_resolver("own_or", own_or, replace=True)


class SearchPath(SearchPathPlugin):
    """Adds the registered components and the folders of other packages to Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append both; the folder of `config.yaml` is read by `ConfFolder`."""
        for element in search_path.get_path():
            if element.provider == MAIN_PROVIDER:
                element.path = as_conf(str(element.path))
        search_path.append("repro", f"{Components.scheme()}://")
        for folder_of_user in conf_folders()[1:]:
            search_path.append("repro-user", as_conf(str(folder_of_user)))
        search_path.append("repro", f"{Models.scheme()}://")


class ConfFolder(FileConfigSource):
    """A folder of YAML files, each parsed once in a process and again when it changes.

    Attributes:
        DATA: folders of data that no cell's configuration is composed of.
    """

    DATA: ClassVar = frozenset({"metric", "reference"})

    @property
    def is_ours(self) -> bool:
        """Whether its files may say anything."""
        return self.provider == MAIN_PROVIDER

    @staticmethod
    def scheme() -> str:
        """The scheme of its paths."""
        return SCHEME

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """The groups and configurations of a folder, without folders of data."""
        names = super().list(config_path, results_filter)
        if config_path.strip("/"):
            return sorted({*names, *line_names(Path(self.path), config_path.strip("/"))})
        return [name for name in names if name not in self.DATA]

    def is_config(self, config_path: str) -> bool:
        """Whether a path is a file's, or a table's line."""
        group, name = _split(config_path)
        return super().is_config(config_path) or name in line_names(Path(self.path), group)

    def load_config(self, config_path: str) -> ConfigResult:
        """The configuration of a file, created anew from the parsed content, since composing changes it.

        Raises:
            ConfigLoadError: there is no such file.
            InputError: it is not YAML, or not a mapping; or it is another's and more than settings.
        """
        if ".." in config_path.split("/"):
            raise InputError(f"{config_path!r} leaves the folder of configuration files {self.path}")
        path = os.path.realpath(os.path.join(self.path, self._normalize_file_name(config_path)))
        group, _, name = config_path.removesuffix(".yaml").partition("/")
        try:
            file_stat = os.stat(path)
        except FileNotFoundError as wrong:
            content = line_content(Path(self.path), *_split(config_path))
            if content is None:
                raise ConfigLoadError(f"Config not found : {path}") from wrong
            package = None
        else:
            package, content = _parse_file(path, file_stat.st_mtime_ns, file_stat.st_size)
        if not isinstance(content, dict):
            raise InputError(f"{path} must be a mapping and is a {type(content).__name__}")
        if not self.is_ours:
            require_settings({HYDRA: content} if group == HYDRA else content, path)
            package = require_header(package, group, path)
        if group in WHOLE_CELL_GROUPS:
            package = "_global_"
        if group == EXPERIMENT:
            content = {"name": name, **content}
        if package == "_global_":
            require_no_names(content, path)
            content = with_sweep(content, "" if self.is_ours else path)
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(content), {"package": package})


def with_sweep(content: Mapping[str, Any], foreign_path: str = "") -> dict[str, Any]:
    """A file's content; one with a `grid`, or a table of one cell, gets the sweep that Hydra makes of it.

    Args:
        content: of a file about the whole configuration.
        foreign_path: the file's path if it is another's: InputError if its grid varies more than settings.
    """
    has_columns = bool({"columns", "like"} & {*(content.get("table") or ())})
    if not content.get("grid") and not has_columns:
        return dict(content)
    grid = grid_of(content)
    if foreign_path:
        axes: list[Mapping[str, Any]] = [grid.params, *grid.choices]
        for part in axes:
            part_values = ((n, v if isinstance(v, list) else [v]) for n, v in part.items())
            require_overrides(
                ((name, value) for name, values in part_values for value in values), foreign_path
            )
    sweeper = {"params": _postpone_references(grid.params), "cells": _postpone_references(grid.choices)}
    return {**content, "hydra": {**content.get("hydra", {}), "mode": "MULTIRUN", "sweeper": sweeper}}


def _postpone_references(overrides: Any) -> Any:
    """Overrides whose interpolations (`${labels.width}`) wait for the configuration of each cell."""
    if isinstance(overrides, dict):
        return {name: _postpone_references(value) for name, value in overrides.items()}
    if isinstance(overrides, list):
        return [_postpone_references(value) for value in overrides]
    return overrides.replace("${", POSTPONED)


@cache
def _parse_file(path: str, changed_ns: int, file_size: int) -> tuple[str | None, Any]:
    """A file's package header and content; `changed` and `file_size` are part of the cache key."""
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
    hydra_loader = get_yaml_loader()
    return type("Loader", (yaml.CSafeLoader, hydra_loader), {}) if yaml.__with_libyaml__ else hydra_loader


class Components(ConfigSource):
    """Config source of registered components: the typed fields of a class are its configuration.

    A component's module is imported when it is selected; listing names imports nothing.
    """

    @staticmethod
    def scheme() -> str:
        """The scheme of its paths."""
        return "components"

    def available(self) -> bool:
        """Always true."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Whether a path is a published group or the root."""
        return config_path.strip("/") in ("", *GROUPS)

    def is_config(self, config_path: str) -> bool:
        """Whether a path is `group/name` of a registered component."""
        group, name = _split(config_path)
        return group in GROUPS and name in _names(group)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Groups at the root, names in a group."""
        group = config_path.strip("/")
        if not group:
            return [] if results_filter == ObjectType.CONFIG else sorted(GROUPS)
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
    people bring: a folder, a GGUF file, or `org/repo` on the hub. In `model/checkpoint/` it is that alone.
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
        group, name = _group_of_model(config_path)
        is_companion = group == "model" and name.startswith(COMPANION_PREFIX)
        return group in MODEL_GROUPS and (is_companion or model_file(name) is not None)

    def load_config(self, config_path: str) -> ConfigResult:
        """A model's file, or that of its checkpoint."""
        group, name = _group_of_model(config_path)
        if group == CHECKPOINT_GROUP:
            content: dict[str, Any] = (model_file(name) or {})["checkpoint"]
        elif name.startswith(COMPANION_PREFIX):
            method = name.removeprefix(COMPANION_PREFIX)
            needs = lookup("method", method).companion if method else "draft"  # type: ignore[attr-defined]
            content = {"defaults": [f"{DEFAULT_TARGET}_{needs}"]}
        else:
            content = model_file(name) or {}
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(content), {"package": None})


def _group_of_model(config_path: str) -> tuple[str, str]:
    """The group of a path below `model/`, and the name, which may be a path itself."""
    prefix = f"{CHECKPOINT_GROUP}/"
    if config_path.startswith(prefix):
        return CHECKPOINT_GROUP, config_path.removeprefix(prefix)
    group, _, name = config_path.partition("/")
    return group, name


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
    field_rows: list[Any] = [("name", str, field(default=name))]
    field_rows += [(f.name, types[f.name], field(default=f.default)) for f in fields(cls)]
    return make_dataclass(cls.__name__, field_rows)
