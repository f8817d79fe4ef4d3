"""Imports point down, heavy libraries have one importer each, files stay short, errors are not swallowed.

Everything is read from the source itself, so a new file is covered when it is there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import repro

SOURCE = Path(repro.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

ONLY = {
    # tokenizers and GGUF; encoder-decoders; encoders and their tokenizers
    "transformers": {
        "models/checkpoints/checkpoint.py",
        "models/forward/encdec.py",
        "models/encoders/word_pieces.py",
    },
    "huggingface_hub": {"models/checkpoints/hub.py"},
    "gguf": {"models/checkpoints/checkpoint.py"},
    "safetensors": {"models/checkpoints/safetensors_io.py"},
    "datasets": {"data/sources.py"},
    "evaluate": {"metrics/base.py"},
    "wandb": {"tracking.py"},
    "hydra": {"composing.py", "run.py"},
    "numba": {"models/parallel/tree_loops.py", "methods/ghidorah/tree_replay.py"},
    "llvmlite": {"models/parallel/tree_loops.py"},
    # of wheels a download's deadline, not a run's time
    "time": {"device/clock.py", "models/checkpoints/wheels.py"},
}
"""Libraries that one file imports for all; every file named must really do so."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports(module: ast.Module) -> Iterator[str]:
    """Every module that is imported anywhere in a file, `from a import b` as `a.b`."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import hides where it points"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def swallowed(module: ast.Module) -> list[int]:
    """Lines of handlers that do nothing, and of bare ones."""
    handlers = [node for node in ast.walk(module) if isinstance(node, ast.ExceptHandler)]
    return [h.lineno for h in handlers if h.type is None or all(_is_nothing(s) for s in h.body)]


def _is_nothing(statement: ast.stmt) -> bool:
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass)


@cache
def libraries(path: Path) -> frozenset[str]:
    return frozenset(i.split(".")[0] for i in imports(tree(path)))


def importers(library: str) -> set[str]:
    return {name(p) for p in FILES if library in libraries(p)}


@pytest.mark.parametrize("library", ONLY)
def test_a_library_has_its_importers_and_no_others(library: str) -> None:
    assert importers(library) == ONLY[library]


def test_the_core_knows_no_torch() -> None:
    assert not {p for p in importers("torch") if p.startswith("core/")}


def test_no_test_imports_another() -> None:
    """What several need lies in modules without tests; each process of a parallel run would make it anew."""
    tests = sorted(Path(__file__).parent.glob("*.py"))
    assert len(tests) >= 100
    wrong = {p.name: found for p in tests if (found := {i for i in libraries(p) if i.startswith("test_")})}
    assert wrong == {}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_is_short_has_a_docstring_and_swallows_no_error(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
    assert path.name == "__init__.py" or ast.get_docstring(tree(path)), "a module says first what it owns"
    assert swallowed(tree(path)) == []


def test_a_swallowed_error_is_noticed() -> None:
    assert swallowed(ast.parse("try:\n    f()\nexcept OSError:\n    pass")) == [3]
    assert swallowed(ast.parse("try:\n    f()\nexcept:\n    raise")) == [3]
    assert swallowed(ast.parse("try:\n    f()\nexcept OSError:\n    ...")) == [3]
    assert swallowed(ast.parse("try:\n    f()\nexcept OSError:\n    g()")) == []
