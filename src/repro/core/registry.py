"""Names for components: a registered class is found by group and name, and its fields are its configuration.

`discover` reads which names the modules of a package register and imports none of them; a module is imported
when one of its classes is looked up. Knows nothing of Hydra; `experiments.composing` publishes the names.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from repro.core.errors import InputError

ENTRY_POINTS = "repro.components"

CALL = re.compile(
    r"""\bregister\(\s*(?P<quote>['"])(?P<group>\w+)(?P=quote)\s*,\s*(?P<other>['"])(?P<name>\w+)(?P=other)\s*\)"""
    r"|(?P<unread>\bregister\(|\bregister\s+as\b)"
)
"""A registration whose group and name are written out, or one that only an import can tell."""

_components: dict[str, dict[str, type]] = {}
_modules: dict[str, dict[str, str]] = {}
C = TypeVar("C", bound=type)


def register(group: str, name: str) -> Callable[[C], C]:
    """Class decorator: make a class known as `name` in `group` (`method`, `metric`).

    Raises:
        InputError: another class already has that name.
    """

    def keep(cls: C) -> C:
        known = _components.setdefault(group, {}).setdefault(name, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InputError(f"{group} {name!r} is registered twice: {known!r} and {cls!r}")
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
    """The class registered as `name`, whose module is imported if need be.

    Raises:
        InputError: there is none; the sentence has near misses and all choices.
    """
    if name not in _components.get(group, {}) and name in _modules.get(group, {}):
        importlib.import_module(_modules[group][name])
    return _known(group, name)


def _known(group: str, name: str) -> type:
    if name not in _components.get(group, {}):
        raise InputError(unknown(group, name, names(group)))
    return _components[group][name]


def unknown(what: str, name: str, choices: Iterable[str]) -> str:
    """The sentence for a name that nothing has: near misses first, then every choice."""
    names = sorted(choices)
    near = get_close_matches(name, names, n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"there is no {what} {name!r}.{hint} Choices: {', '.join(names)}"


def discover(*packages: str) -> None:
    """Read what every module below the given packages registers, and what the modules register that an
    installed package announces under the entry point group `repro.components`.

    A module is imported here only if its source does not say what it registers: where group or name of a
    registration is no literal, or there is no source. Such a module of an announced package has all modules
    of that package imported, since any of them may call it.

    Raises:
        InputError: two modules register one name.
    """
    for package in packages:
        _read(package)
    _read_announced()


@cache
def _read_announced() -> None:
    for entry in entry_points(group=ENTRY_POINTS):
        _announced(entry)


def _announced(entry: EntryPoint) -> None:
    if entry.attr:  # it names a thing in a module, which registers what it likes
        entry.load()
    else:
        _read(entry.module)


@cache
def _read(package: str) -> None:
    """Note what a module and all modules below it register."""
    found = dict(_sources(package))
    texts = {name: path.read_text(encoding="utf-8") if path else None for name, path in found.items()}
    calls = {name: list(CALL.finditer(text)) for name, text in texts.items() if text is not None}
    if len(calls) < len(texts) or any(call["unread"] for some in calls.values() for call in some):
        for name in texts:
            importlib.import_module(name)
        return
    for module, some in calls.items():
        for call in some:
            _note(call["group"], call["name"], module)


def _note(group: str, name: str, module: str) -> None:
    known = _modules.setdefault(group, {}).setdefault(name, module)
    if known != module:
        raise InputError(f"{group} {name!r} is registered twice: in {known} and in {module}")


def _sources(package: str) -> Iterator[tuple[str, Path | None]]:
    """A module and all modules below it, each with its source file; `None` where it has none."""
    spec = find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    yield package, _source(spec)
    for found in pkgutil.iter_modules(spec.submodule_search_locations or (), package + "."):
        if found.ispkg:
            yield from _sources(found.name)
        else:
            below = found.module_finder.find_spec(found.name, None)
            yield found.name, _source(below) if below else None


def _source(spec: ModuleSpec) -> Path | None:
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
