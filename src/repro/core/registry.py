"""Names for components: a registered class is found by group and name, and its fields are its configuration.

Knows nothing of Hydra; `repro.run` publishes what is registered here to it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import TypeVar

from repro.core.errors import InputError

ENTRY_POINTS = "repro.components"

_components: dict[str, dict[str, type]] = {}
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


def registered(group: str) -> dict[str, type]:
    """All classes of a group by name, in alphabetical order."""
    return dict(sorted(_components.get(group, {}).items()))


def lookup(group: str, name: str) -> type:
    """The class registered as `name`; InputError with near misses and all choices when there is none."""
    known = registered(group)
    if name not in known:
        raise InputError(unknown(group, name, known))
    return known[name]


def unknown(what: str, name: str, choices: Iterable[str]) -> str:
    """The sentence for a name that nothing has: near misses first, then every choice."""
    names = sorted(choices)
    near = get_close_matches(name, names, n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"there is no {what} {name!r}.{hint} Choices: {', '.join(names)}"


def discover(*packages: str) -> None:
    """Import every module below the given packages, then every module that an installed package announces
    under the entry point group `repro.components`, so that what they register is known."""
    for package in packages:
        module = importlib.import_module(package)
        for found in pkgutil.walk_packages(module.__path__, package + "."):
            importlib.import_module(found.name)
    for entry in entry_points(group=ENTRY_POINTS):
        entry.load()
