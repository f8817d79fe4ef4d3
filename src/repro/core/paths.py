"""The project's folders, in a checkout or an installation, and those of other packages.

Owns the look-up of packages by their entry points, and how entries are merged that several `conf/` folders
define: published values, BibTeX entries, metrics, names. Must not know what an entry is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from repro.core.errors import InputError, warn

T = TypeVar("T")

CONF_ENTRY_POINTS = "repro.conf"
"""Entry point group of packages with YAML folders (`mine = "my_package.conf"`): devices, models and so on."""

_warned_packages: set[str] = set()
"""Packages that a warning of this process has named: a broken one usually breaks all of its entry points."""


def project_root() -> Path:
    """The folder of `conf/` and `assets/`: the checkout that this code runs from, else the installed package.

    Raises:
        InputError: neither has a `conf/`.
    """
    return _root_of(__file__)


@cache
def _root_of(module: str) -> Path:
    package = Path(module).resolve().parents[1]
    for root in (package, package.parents[1]):
        if (root / "conf").is_dir():
            return root
    raise InputError(f"no folder 'conf' in {package}: this installation is not whole; install repro again")


def in_checkout() -> bool:
    """Whether the project's folders are those of a checkout, and not of an installation."""
    return project_root() != Path(__file__).resolve().parents[1]


def conf_dir() -> Path:
    """The project's folder `conf/`.

    Raises:
        InputError: as `project_root`.
    """
    return project_root() / "conf"


def from_home(path: str) -> str:
    """A path whose `~` or `~user` is written out; InputError if nobody of that name has a home folder."""
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        raise InputError(
            f"{path!r} begins with the home folder of a user who is not here; write ./{path} for such a name"
        )
    return expanded


def conf_folders() -> list[Path]:
    """The project's folder `conf/`, then those of packages of the entry point group `repro.conf`.

    A package whose folder cannot be found is left out with a warning.

    Raises:
        InputError: as `project_root`.
    """
    return [conf_dir(), *_folders_of_packages()]


@cache
def _folders_of_packages() -> tuple[Path, ...]:
    return tuple(folders(CONF_ENTRY_POINTS))


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
    paths: dict[Path, None] = {}

    def read(entry: EntryPoint) -> None:
        spec = find_spec(entry.module)
        # An editable installation adds a place that is no folder: setuptools finds its own files by it.
        locations = [Path(location) for location in (spec and spec.submodule_search_locations) or ()]
        existing = [location for location in locations if location.is_dir()]
        if not existing:
            raise FileNotFoundError(f"no folder {entry.module.replace('.', '/')}")
        paths.update(dict.fromkeys(existing))

    for_each(group, read)
    return list(paths)


def _warn(entry: EntryPoint, reason: str) -> None:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.name
    if package not in _warned_packages:
        _warned_packages.add(package)
        warn(f"package {package} cannot be read, so its {entry.group} {entry.module} is left out: {reason}")


def merge_entries(
    folders: Sequence[Path], pattern: str, read: Callable[[Path], Mapping[str, T]], kind: str
) -> dict[str, T]:
    """The entries of all files of all folders, in their order.

    A folder after the first belongs to another package: if one of its files is malformed, a warning names the
    file, and all entries of this kind in that folder are left out; so is an entry that is defined already.

    Args:
        folders: `conf/` folders, the project's own first.
        pattern: of the files that hold such entries, such as `metric/*.yaml`.
        read: the entries of a file by name; raises InputError or ValueError if the file is malformed.
        kind: an entry in words, such as "metric".

    Raises:
        InputError: two files of the first folder define the same entry, or one is malformed.
    """
    all_entries: dict[str, T] = {}
    path_by_name: dict[str, Path] = {}
    for rank, folder in enumerate(folders):
        for path, entries in _read_entries(folder, pattern, read, is_own=rank == 0):
            for name, entry in entries.items():
                if name not in all_entries:
                    all_entries[name], path_by_name[name] = entry, path
                    continue
                sentence = f"{kind} {name!r} is defined twice: in {path_by_name[name]} and in {path}"
                if rank == 0:
                    raise InputError(sentence)
                warn(f"{sentence}; the second is left out")
    return all_entries


def conf_entries(
    pattern: str, read: Callable[[Path], Mapping[str, T]], kind: str, folders: Sequence[Path] | None = None
) -> dict[str, T]:
    """As `merged`, but each file is read once; of `conf_folders()` if no folders are named."""
    return _once(tuple(conf_folders() if folders is None else folders), pattern, read, kind)


_once = cache(merge_entries)


def _read_entries(
    folder: Path, pattern: str, read: Callable[[Path], Mapping[str, T]], is_own: bool
) -> list[tuple[Path, Mapping[str, T]]]:
    entries: list[tuple[Path, Mapping[str, T]]] = []
    for path in sorted(folder.glob(pattern)):
        try:
            entries.append((path, read(path)))
        except (InputError, UnicodeDecodeError) as wrong:
            if is_own:
                raise
            warn(f"{path} is left out, with all of its kind in {folder}: {wrong}")
            return []
    return entries
