"""Resolved configurations of a sweep's cells, without composing each.

A set of group choices is composed once; the values of a cell are set there, what refers to them is resolved,
and they are taken back. Must not know what a setting means.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, lru_cache
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, ValueType
from omegaconf import Container, DictConfig, ListConfig, OmegaConf
from omegaconf._utils import split_key

from repro.core.errors import InputError

OF_THE_SWEEP = frozenset({"hydra", "grid", "table", "beside"})
"""Top-level entries that no cell has."""

CHOICES = 64
"""How many composed choices are kept; one takes about a megabyte."""

Path = tuple[Any, ...]


def plain(config: DictConfig, *without: str) -> dict[str, Any]:
    """Resolve a configuration into plain dictionaries, without `OF_THE_SWEEP` and `without`."""
    left = {*OF_THE_SWEEP, *without}
    return {str(name): plain_value(config, name) for name in config if name not in left}


def plain_value(container: Any, name: Any) -> Any:
    """An entry of a configuration as plain data; OmegaConfBaseException if it is missing or unresolvable."""
    value = container[name]
    if not isinstance(value, Container):
        return value
    return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)


NUMBER = re.compile(r"([a-z_]+(?:\.[a-z_]+)*)=(0|-?[1-9][0-9]*)")
"""An override that sets an entry to a whole number, of which a sweep may have thousands."""

_parser = OverridesParser.create()


@lru_cache(maxsize=10_000)
def parsed(override: str) -> Override:
    """An override of the command line, which nobody changes."""
    if number := NUMBER.fullmatch(override):  # what Hydra's grammar takes a millisecond for
        key, value = number.groups()
        return Override(OverrideType.CHANGE, key, ValueType.ELEMENT, int(value), input_line=override)
    return _parser.parse_overrides([override])[0]  # which names it in its error


def require_one_choice(overrides: Iterable[str], is_group: Callable[[str], bool]) -> None:
    """InputError for a list of choices of one group, whose parts Hydra would mix."""
    for override in map(parsed, overrides):
        chosen = override._value
        if isinstance(chosen, list) and is_group(override.key_or_group):
            raise InputError(
                f"{override.input_line} would mix the parts of all; choose one, or one after the other: "
                f"-m {override.get_key_element()}={','.join(map(str, chosen))}"
            )


def shared_by(jobs: Sequence[Sequence[str]]) -> frozenset[str]:
    """The overrides of all cells, without those of an entry in which other overrides of a cell set something.

    So it makes no difference that they come first.
    """
    shared = frozenset(jobs[0]).intersection(*jobs)
    changed = top_level(set().union(*jobs) - shared)
    return frozenset(override for override in shared if top_level([override]).isdisjoint(changed))


def top_level(overrides: Iterable[str]) -> frozenset[str]:
    """The top-level entries that overrides change."""
    return frozenset(override.lstrip("+~").partition("=")[0].partition(".")[0] for override in overrides)


def take_entries(config: DictConfig) -> None:
    """Let entries that several configurations share resolve in this one what they refer to."""
    for container in (config, content(config).get("hydra")):
        for node in content(container).values():
            if node._get_parent() is not container:
                node._set_parent(container)


def content(config: Any) -> dict[Any, Any]:
    """The nodes of a mapping's entries, which may be changed; of none, none."""
    return {} if config is None else config.__dict__["_content"]


class CellConfigs:
    """The configurations of a sweep's cells.

    Attributes:
        compose: makes a configuration with its `hydra` section of choices, and of the names among
            `OF_THE_SWEEP` in which values will be set.
        is_group: whether a name is a group, whose overrides are choices.
        shared: overrides of all cells, which are composed with the choices.
    """

    def __init__(
        self,
        compose: Callable[[list[str], frozenset[str]], DictConfig],
        is_group: Callable[[str], bool],
        shared: frozenset[str] = frozenset(),
    ) -> None:
        self.compose = compose
        self.is_group = cache(is_group)
        self.shared = shared
        self._known: OrderedDict[tuple[tuple[str, ...], frozenset[str]], Choices] = OrderedDict()

    def plain(self, overrides: Sequence[str]) -> dict[str, Any]:
        """The resolved configuration of a cell, as `plain` gives it of the composed one.

        Cells share what is equal; nobody changes it.

        Raises:
            HydraException: it cannot be composed.
            OmegaConfBaseException: it cannot be resolved.
        """
        choices, values = self._split(overrides)
        with choices.named():
            cell = choices.with_values(values)
            return plain(choices.composed(values)) if cell is None else cell

    def composed(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration of a cell, not resolved."""
        choices, values = self._split(overrides)
        return choices.composed(values)

    def choices(self, overrides: Sequence[str]) -> Choices:
        """What the choices among a cell's overrides are composed to."""
        return self._split(overrides)[0]

    def _split(self, overrides: Sequence[str]) -> tuple[Choices, list[Override]]:
        chosen, values = [], []
        for typed in overrides:
            if typed in self.shared or self.is_group((override := parsed(typed)).key_or_group):
                chosen.append(typed)
            else:
                values.append(override)
        changed = frozenset(value.key_or_group.partition(".")[0] for value in values) & OF_THE_SWEEP
        key = tuple(chosen), changed
        if key not in self._known:
            last = next(reversed(self._known.values()), None)
            self._known[key] = Choices(self.compose(chosen, changed), last)
            if len(self._known) > CHOICES:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        take_entries(self._known[key].config)
        return self._known[key], values


class Choices:
    """A configuration composed of choices, and its plain form with gaps where something is resolved.

    Attributes:
        config: the composed configuration, as it is without a cell's values.
    """

    def __init__(self, config: DictConfig, before: Choices | None = None) -> None:
        """Of a composed configuration; `before` may share entries with it."""
        self.config = config
        self._gaps: list[Path] = []
        self._plain: dict[str, Any] = {}
        for name in (str(name) for name in config if name not in OF_THE_SWEEP):
            node = config._get_node(name)
            if before and _node(before.config, name) is node:
                self._plain[name] = before._plain[name]
                self._gaps += [path for path in before._gaps if path[0] == name]
            else:
                self._plain[name] = self._template(node, (name,))

    def composed(self, values: Sequence[Override]) -> DictConfig:
        """The configuration with these values, not resolved."""
        config = deepcopy(self.config)
        ConfigLoaderImpl._apply_overrides_to_config([*values], config)
        return config

    def with_values(self, values: Sequence[Override]) -> dict[str, Any] | None:
        """The plain configuration with these values; `None` if one is set through a reference.

        Raises:
            HydraException: a value does not fit.
            OmegaConfBaseException: something cannot be resolved.
        """
        places = [_place(self.config, override) for override in values]
        if None in places:
            return None
        paths = list(dict.fromkeys(place for place in places if place))
        with _set_aside(self.config, paths):
            ConfigLoaderImpl._apply_overrides_to_config([*values], self.config)
            changed = [path for path in paths if path[0] not in OF_THE_SWEEP]
            gaps = [path for path in self._gaps if not any(path[: len(new)] == new for new in changed)]
            found = _opened(self._plain, changed + gaps)
            for path in changed + gaps:
                self._fill(found, path)
        return found

    @contextmanager
    def named(self) -> Iterator[None]:
        """Within the block, `${hydra:runtime.choices.method}` names these choices."""
        instance: Any = HydraConfig.instance()
        before, instance.cfg = instance.cfg, self.config
        try:
            yield
        finally:
            instance.cfg = before

    def _template(self, node: Any, path: Path) -> Any:
        """A node as plain data; what has to be resolved is left out and its path kept."""
        if node._is_none():
            return None
        if node._is_missing() or node._is_interpolation() or (isinstance(node, ListConfig) and _refers(node)):
            self._gaps.append(path)
            return None
        if isinstance(node, DictConfig):
            return {key: self._template(node._get_node(key), (*path, key)) for key in node}
        return OmegaConf.to_container(node) if isinstance(node, Container) else node._value()

    def _fill(self, found: dict[str, Any], path: Path) -> None:
        """Put what the configuration has at a path into its plain form, or remove it there."""
        container: Any = self.config
        for key in path[:-1]:
            container, found = _node(container, key), found[key]
        if _node(container, path[-1]) is None:
            found.pop(path[-1], None)
        else:
            found[path[-1]] = plain_value(container, path[-1])


def _node(container: Any, key: Any) -> Any:
    """The node of an entry, not resolved; `None` if there is none."""
    return container._get_node(key, validate_access=False)


def _refers(node: ListConfig) -> bool:
    """Whether something in a list has to be resolved."""
    parts = (node._get_node(index) for index in range(len(node)))
    return any(_refers_in(part) for part in parts)


def _refers_in(node: Any) -> bool:
    if node._is_none():
        return False
    if node._is_missing() or node._is_interpolation():
        return True
    if isinstance(node, DictConfig):
        return any(_refers_in(node._get_node(key)) for key in node)
    return isinstance(node, ListConfig) and _refers(node)


def _place(config: DictConfig, override: Override) -> Path | None:
    """The path of the entry that an override changes or adds; `None` if a reference stands on the way."""
    keys = split_key(override.key_or_group)
    container = config
    for depth, key in enumerate(keys[:-1]):
        node = _node(container, key)
        if node is None:
            return tuple(keys[: depth + 1])
        if not isinstance(node, DictConfig) or node._is_interpolation():
            return None
        if node._is_none() or node._is_missing():
            return tuple(keys[: depth + 1])
        container = node
    return tuple(keys)


@contextmanager
def _set_aside(config: DictConfig, paths: Sequence[Path]) -> Iterator[None]:
    """Within the block, copies stand for the entries at these paths."""
    kept: list[tuple[dict[Any, Any], Any, Any]] = []
    for path in sorted(paths, key=len):
        container: Any = config
        for key in path[:-1]:
            container = _node(container, key)
        entries = content(container)
        node = entries.get(path[-1])
        kept.append((entries, path[-1], node))
        if node is not None:
            entries[path[-1]] = deepcopy(node)
    try:
        yield
    finally:
        for entries, key, node in reversed(kept):
            if node is None:
                entries.pop(key, None)
            else:
                entries[key] = node


def _opened(plain: dict[str, Any], paths: Iterable[Path]) -> dict[str, Any]:
    """A mapping in which entries at these paths may be set; all others are those of the one given."""
    found = dict(plain)
    opened = set[Path]()
    for path in paths:
        container = found
        for depth, key in enumerate(path[:-1], 1):
            if path[:depth] not in opened:
                opened.add(path[:depth])
                container[key] = dict(container[key])
            container = container[key]
    return found


def selected(config: Mapping[str, Any], key: str) -> Any:
    """The entry of a plain configuration with this dotted key; `None` if there is none."""
    found: Any = config
    for part in split_key(key):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found
