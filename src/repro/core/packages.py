"""Packages of users, found by their entry points; what cannot be read is named in a warning and left out.

Owns the look-up of entry points and of the folders that they name. Must not know what a package contains.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

from repro.core.errors import warn

_named: set[str] = set()
"""Packages that a warning of this process has named: a broken one usually breaks all of its entry points."""


def for_each(group: str, read: Callable[[EntryPoint], None]) -> None:
    """Call `read` with every entry point of a group.

    If it raises, a warning names the package and the reason, and that entry point is left out. Reading may
    import the package, so any exception can come of it.
    """
    for entry in entry_points(group=group):
        try:
            read(entry)
        except (Exception, SystemExit) as wrong:
            _warn(entry, f"{type(wrong).__name__}: {' '.join(str(wrong).split())}")


def folders(group: str) -> list[Path]:
    """The folders that the entry points of a group name as modules (`my_package.conf`), each once.

    A folder without `__init__.py` is found too. One that does not exist is left out with a warning.
    """
    found: dict[Path, None] = {}

    def read(entry: EntryPoint) -> None:
        spec = find_spec(entry.module)
        # An editable installation adds a place that is no folder: setuptools finds its own files by it.
        places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
        there = [place for place in places if place.is_dir()]
        if not there:
            raise FileNotFoundError(f"no folder {entry.module.replace('.', '/')}")
        found.update(dict.fromkeys(there))

    for_each(group, read)
    return list(found)


def _warn(entry: EntryPoint, why: str) -> None:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.name
    if package not in _named:
        _named.add(package)
        warn(f"package {package} cannot be read, so its {entry.group} {entry.module} is left out: {why}")
