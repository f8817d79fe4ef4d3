"""A hash of the source code that made a record. It is not part of any key.

Reads source files without importing them.
"""

from __future__ import annotations

import hashlib
import importlib.util
from functools import cache
from operator import itemgetter
from pathlib import Path

from repro.core.errors import InputError


@cache
def source_hash(*packages: str) -> str:
    """SHA-256 over all Python files of `repro` and the given packages or modules; cached in the process.

    Raises:
        InputError: a package has no Python source.
    """
    whole = hashlib.sha256()
    for package in sorted({"repro", *packages}):
        for path, name in _files(package):
            whole.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return whole.hexdigest()


def _files(package: str) -> list[tuple[Path, str]]:
    """A package's files and their relative names, sorted by name."""
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.submodule_search_locations:
        folders = map(Path, spec.submodule_search_locations)
        files = [(path, path.relative_to(folder)) for folder in folders for path in folder.rglob("*.py")]
        return sorted(((path, f"{package}/{name.as_posix()}") for path, name in files), key=itemgetter(1))
    if spec is not None and spec.origin and spec.origin.endswith(".py"):
        return [(Path(spec.origin), package)]
    raise InputError(f"{package!r} has no Python source to hash")
