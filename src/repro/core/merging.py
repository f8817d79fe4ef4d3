"""Merges entries that several `conf/` folders define: published values, BibTeX entries, metrics, names.

Owns the rules of that merge. Must not know what an entry is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from repro.core.errors import InputError, warn

T = TypeVar("T")


def merged(
    folders: Sequence[Path],
    files: Callable[[Path], Iterable[Path]],
    read: Callable[[Path], Mapping[str, T]],
    what: str,
) -> dict[str, T]:
    """The entries of all files of all folders, in their order.

    A folder after the first belongs to another package: if one of its files is malformed, a warning names the
    file, and all entries of this kind in that folder are left out; so is an entry that is defined already.

    Args:
        folders: `conf/` folders, the project's own first.
        files: the files of a folder that hold such entries; those that do not exist are passed over.
        read: the entries of a file by name; raises InputError or ValueError if the file is malformed.
        what: an entry in words, such as "metric".

    Raises:
        InputError: two files of the first folder define the same entry, or one is malformed.
    """
    found: dict[str, T] = {}
    origin: dict[str, Path] = {}
    for number, folder in enumerate(folders):
        for path, entries in _readable(folder, files, read, own=number == 0):
            for name, entry in entries.items():
                if name not in found:
                    found[name], origin[name] = entry, path
                    continue
                twice = f"{what} {name!r} is defined twice: in {origin[name]} and in {path}"
                if number == 0:
                    raise InputError(twice)
                warn(f"{twice}; the second is left out")
    return found


def _readable(
    folder: Path,
    files: Callable[[Path], Iterable[Path]],
    read: Callable[[Path], Mapping[str, T]],
    own: bool,
) -> list[tuple[Path, Mapping[str, T]]]:
    entries: list[tuple[Path, Mapping[str, T]]] = []
    for path in files(folder):
        if not path.is_file():
            continue
        try:
            entries.append((path, read(path)))
        except (InputError, UnicodeDecodeError) as wrong:
            if own:
                raise
            warn(f"{path} is left out, with all of its kind in {folder}: {wrong}")
            return []
    return entries
