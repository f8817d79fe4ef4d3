"""What a method's code is: one hash over its module and every module that it runs on.

Reads source files and imports none of them.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path

from repro.core.errors import InputError


def source_hash(modules: Iterable[str]) -> str:
    """SHA-256 over modules and what they import, directly or not, from `repro` or their own package.

    Comments, docstrings and layout do not count, so that mending a sentence does not rerun a sweep.

    Raises:
        InputError: a named module has no Python source.
    """
    named = sorted(modules)
    packages = {"repro"} | {name.partition(".")[0] for name in named}
    codes: dict[str, str] = {}
    waiting = list(named)
    while waiting:
        name = waiting.pop()
        if name in codes:
            continue
        tree = _parse(name)
        if tree is None:
            if name in named:
                raise InputError(f"module {name!r} has no Python source to hash")
            continue
        codes[name] = _code(tree)
        waiting += [found for found in _imports(name, tree) if found.partition(".")[0] in packages]
    return hashlib.sha256("\0".join(f"{n}\0{codes[n]}" for n in sorted(codes)).encode()).hexdigest()


def _origin(name: str) -> Path | None:
    """The file that a module comes from, found without importing it; `None` when no Python file is it."""
    top, *parts = name.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    if not parts and spec.origin and spec.origin.endswith(".py"):
        return Path(spec.origin)
    for folder in spec.submodule_search_locations or ():
        path = Path(folder, *parts)
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                return file
    return None


def _parse(name: str) -> ast.Module | None:
    path = _origin(name)
    return None if path is None else ast.parse(path.read_bytes())


def _imports(name: str, tree: ast.Module) -> set[str]:
    """Names that a module imports, made absolute; of attributes among them `_origin` finds no file."""
    path = _origin(name)
    package = name if path and path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - max(node.level - 1, 0)]
            base = ".".join([*(above if node.level else []), *([node.module] if node.module else [])])
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found | {name.rsplit(".", n)[0] for name in found for n in range(1, name.count(".") + 1)}


def _code(tree: ast.Module) -> str:
    """What a module does: its syntax tree without docstrings."""
    for node in ast.walk(tree):
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)
