"""Hashes of the source code that made a record. They are not part of any key.

Reads source files without importing them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from functools import cache
from operator import itemgetter
from pathlib import Path
from types import ModuleType

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


@cache
def source_of(component: type) -> str:
    """SHA-256 over the files of somebody's class, and of what they import of its package; "" for ours."""
    package = component.__module__.partition(".")[0]
    if package in ("repro", "builtins", "__main__"):
        return ""
    modules: dict[str, ModuleType] = {}
    left = [base.__module__ for base in component.__mro__]
    while left:
        name = left.pop()
        module = sys.modules.get(name)
        if module is None or name in modules or name.partition(".")[0] != package:
            continue
        modules[name] = module
        left += map(_module_of, vars(module).values())
    whole = hashlib.sha256()
    for name, module in sorted(modules.items()):
        if module.__file__:
            whole.update(f"{name}\0".encode() + Path(module.__file__).read_bytes() + b"\0")
    return whole.hexdigest()


def _module_of(value: object) -> str:
    """The name of a module, or of that of a class or function; "" of anything else."""
    return value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", None) or "")


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
