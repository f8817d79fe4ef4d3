"""The component registry: classes by group and name; a class's fields are its configuration.

`discover` scans the sources of a package for registrations without importing them; a module is imported when
one of its classes is looked up. Must not know Hydra; `experiments.composing` publishes the names.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from repro.core.errors import InputError
from repro.core.paths import for_each

ENTRY_POINTS = "repro.components"

REGISTER_CALL = re.compile(
    r"""\bregister\(\s*(?P<quote>['"])(?P<group>\w+)(?P=quote)\s*,\s*(?P<other>['"])(?P<name>\w+)(?P=other)\s*\)"""
    r"|(?P<unread>\bregister\(|\bregister\s+as\b)"
)
"""Matches a registration with literal group and name, or (`unread`) one that only an import can resolve."""

_components: dict[str, dict[str, type]] = {}
_modules: dict[str, dict[str, str]] = {}
C = TypeVar("C", bound=type)


def register(group: str, name: str) -> Callable[[C], C]:
    """Class decorator: register a class as `name` in `group` (`method`, `metric`).

    Raises:
        InputError: another class has that name already.
    """

    def keep(cls: C) -> C:
        registered_class = _components.setdefault(group, {}).setdefault(name, cls)
        if (registered_class.__module__, registered_class.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InputError(f"{group} {name!r} is registered twice: {registered_class!r} and {cls!r}")
        _components[group][name] = cls
        return cls

    return keep


def names(group: str) -> list[str]:
    """All names of a group in alphabetical order; imports nothing."""
    return sorted(_components.get(group, {}).keys() | _modules.get(group, {}).keys())


def registered(group: str) -> dict[str, type]:
    """All classes of a group by name, in alphabetical order; imports their modules."""
    return {name: lookup(group, name) for name in names(group)}


def lookup(group: str, name: str) -> type:
    """The class registered as `name`; its module is imported if necessary.

    Raises:
        InputError: there is none; the message has near misses and all choices. Or it is a user's, and its
            module fails to import.
    """
    require_choice(group, name, names(group))
    if name not in _components.get(group, {}):
        _import(group, name, _modules[group][name])
    if name not in _components.get(group, {}):  # its module registers another name
        raise InputError(unknown(group, name, names(group)))
    return _components[group][name]


def _import(group: str, name: str, module: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as wrong:
        if module.startswith("repro."):  # a fault of ours, which a traceback shows best
            raise
        for classes in _components.values():  # what it registered before it failed
            for leftover in [name for name, cls in classes.items() if cls.__module__ == module]:
                del classes[leftover]
        reason = f"{type(wrong).__name__}: {' '.join(str(wrong).split())}"
        raise InputError(f"{group} {name!r} cannot be used, as {module} fails to import: {reason}") from wrong


def require_choice(kind: str, name: object, choices: Iterable[str]) -> None:
    """InputError unless a name is one of some choices; it may be anything that a configuration can hold."""
    names = list(choices)
    if not isinstance(name, str) or name not in names:
        raise InputError(unknown(kind, name, names))


def unknown(
    kind: str, name: object, choices: Iterable[str], listed_by: str = "", elsewhere: Sequence[str] = ()
) -> str:
    """The error message for an unknown name: `elsewhere` it is one, near misses, then all choices."""
    names = sorted(choices)
    near_names = get_close_matches(name, names, n=3) if isinstance(name, str) else []
    hint = f" Did you mean {' or '.join(near_names)}?" if near_names else ""
    all_names = f"All {len(names)}: {listed_by}" if listed_by else f"Choices: {', '.join(names)}"
    advice = f"; write {' or '.join(elsewhere)}" if elsewhere else ""
    return f"there is no {kind} {name!r}{advice}.{hint} {all_names}"


def discover(*packages: str) -> None:
    """Find the registrations in the given packages and in the entry point group `repro.components`.

    Sources are scanned without importing them. If a module has no source, or a registration's group or name
    is not a literal, all modules of that package are imported instead. A user's package that cannot be read,
    or that registers a name a second time, is left out with a warning.

    Raises:
        InputError: two modules of the given packages register the same name.
    """
    for package in packages:
        _read(package)
    _read_announced()


@cache
def _read_announced() -> None:
    for_each(ENTRY_POINTS, _load_announced)


def _load_announced(entry: EntryPoint) -> None:
    if entry.attr:  # an object in a module; loading it makes the registrations
        entry.load()
    else:
        _read(entry.module)


@cache
def _read(package: str) -> None:
    """Note the registrations of a module and of all modules below it."""
    files = dict(_sources(package))
    texts = {name: path.read_text(encoding="utf-8") if path else None for name, path in files.items()}
    calls = {name: list(REGISTER_CALL.finditer(text)) for name, text in texts.items() if text is not None}
    if len(calls) < len(texts) or any(call["unread"] for matches in calls.values() for call in matches):
        for name in texts:
            importlib.import_module(name)
        return
    owners: dict[tuple[str, str], str] = {}
    for module, matches in calls.items():
        for call in matches:
            group, name = call["group"], call["name"]
            owner = _modules.get(group, {}).get(name) or owners.setdefault((group, name), module)
            if owner != module:
                raise InputError(f"{group} {name!r} is registered twice: in {owner} and in {module}")
    for (group, name), module in owners.items():
        _modules.setdefault(group, {})[name] = module


def _sources(package: str) -> Iterator[tuple[str, Path | None]]:
    """A module and all modules below it, each with its source file or `None`.

    A folder without `__init__.py` is no module itself.
    """
    spec = find_spec(package)
    folders = spec.submodule_search_locations or () if spec else ()
    # An editable installation outlives its folder, and then has places that are no folders.
    if spec is None or (spec.origin is None and not any(Path(folder).is_dir() for folder in folders)):
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    if spec.origin is not None:
        yield package, _source(spec)
    for submodule in pkgutil.iter_modules(folders, package + "."):
        if submodule.ispkg:
            yield from _sources(submodule.name)
        else:
            module = submodule.module_finder.find_spec(submodule.name, None)
            yield submodule.name, _source(module) if module else None


def _source(spec: ModuleSpec) -> Path | None:
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
