"""What files of others may say to Hydra: settings, and no more.

Hydra makes objects of what stands in its own settings (callbacks, launchers, logging), so that whoever sets
these runs code; its resolvers read the environment. Both belong to `conf/` and the command line. Owns the
rules for all other files. Must not import Hydra.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from repro.core.errors import InputError

HYDRA = "hydra"
"""The section, and the folder, of Hydra's own settings."""

WHOLE_CELL_GROUPS = ("experiment", "setup")
"""Groups whose files say something about the whole configuration: Hydra's package `_global_`."""

FOLDER_SETTINGS = ("results", "outputs")
"""Settings that say where a run writes."""

CODE_PREFIX = "evaluate:"
"""Begins the name of a metric that is somebody's code."""

SPECIAL_NAME = re.compile(r"(^|[.+~])_[a-z]+_$")
"""A name that makes an object of what stands beside it (`_target_`)."""

REFERENCE_PATTERN = re.compile(r"\$\{(hydra:runtime\.choices\.|oc\.select:|own_or:)?[^${}:]*\}")
"""A reference to a setting, which need not be there, or to a choice, without another one inside it."""


def require_settings(content: Mapping[Any, Any], file: str) -> None:
    """Check the content of another's configuration file.

    Raises:
        InputError: it sets or chooses something of Hydra, or where a run writes, or reads more than settings.
    """
    if HYDRA in content:
        raise InputError(_touches(file, HYDRA))
    for name in FOLDER_SETTINGS:
        if name in content:
            raise InputError(_writes(file, name))
    for group in _defaults(content.get("defaults"), file):
        if _names_hydra(group):
            raise InputError(_touches(file, group))
    for text in _texts(content):
        if text.startswith(CODE_PREFIX):
            raise InputError(f"{file} asks for {text}, whose code would run; name it on the command line")
        _require_references(text, file)


def require_header(package: str | None, group: str, file: str) -> str | None:
    """The Hydra package of another's configuration file; its own header is not used.

    Raises:
        InputError: a file about the whole configuration has another header.
    """
    if group not in WHOLE_CELL_GROUPS:
        return None
    if package not in (None, "_global_"):
        raise InputError(
            f"{file} has the header `@package {package}`; a file of {group}/ may only say _global_"
        )
    return "_global_"


def require_recorded(overrides: Sequence[str]) -> Sequence[str]:
    """The overrides that records have of their command; errors as in `require_overrides`."""
    pairs = (str(override).partition("=") for override in overrides)
    require_overrides(((name, value) for name, _, value in pairs), "the command of a cell in these results")
    return overrides


def require_overrides(overrides: Iterable[tuple[str, str]], file: str) -> None:
    """Check overrides, as name and value, that stand in another's file.

    Raises:
        InputError: as `require_settings`.
    """
    for name, value in overrides:
        if _names_hydra(name) or SPECIAL_NAME.search(name):
            raise InputError(_touches(file, name))
        if name.lstrip("+~") in FOLDER_SETTINGS:
            raise InputError(_writes(file, name))
        _require_references(value, file)


def _touches(file: str, setting: str) -> str:
    return f"{file} sets {setting}; Hydra's own settings come from conf/config.yaml and the command line only"


def _writes(file: str, name: str) -> str:
    return f"{file} sets {name}; where a run writes is said in conf/config.yaml and on the command line only"


def _defaults(items: Any, file: str) -> Iterator[str]:
    """The groups and files of a defaults list."""
    for item in [] if items is None else items if isinstance(items, list) else [items]:
        is_pair = isinstance(item, dict) and len(item) == 1
        [(group, name)] = item.items() if is_pair else [(item, None)]
        names = name if isinstance(name, list) else [name]
        is_text = isinstance(group, str) and all(isinstance(choice, str | None) for choice in names)
        if not is_text or not isinstance(items, list):
            raise InputError(f"{file}: defaults must be a list of `group: name`, and has {item!r}")
        yield group


def _names_hydra(name: str) -> bool:
    """Whether a key of an override or a defaults list is Hydra's: `override /hydra/launcher`, `a@hydra.x`."""
    group, _, package = (name.split() or [""])[-1].lstrip("+~/").partition("@")
    return re.split(r"[./]", group)[0] == HYDRA or HYDRA in package


def _texts(value: Any) -> Iterator[str]:
    """All texts in plain data, names too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(name)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _require_references(text: str, file: str) -> None:
    """InputError for a resolver, also one whose braces are escaped or wait for a sweep's cells (`@{`)."""
    reduced = text.replace("\\", "").replace("@{", "${")
    while (shorter_text := REFERENCE_PATTERN.sub("_", reduced)) != reduced:
        reduced = shorter_text
    if "${" in reduced:
        raise InputError(
            f"{file} says {text[:80]!r}; it may refer to settings (${{prompts}}) and choices "
            "(${hydra:runtime.choices.service}), resolvers as oc.env stand in conf/config.yaml only"
        )
