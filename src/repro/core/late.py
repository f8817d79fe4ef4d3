"""Lazy imports of libraries.

Importing torch takes longer than most commands take to run. A module that does not need it at import time
writes

    if TYPE_CHECKING:
        import torch
        from torch import Tensor
    else:
        torch = late("torch")

`libraries` has numpy, pandas and others so. Knows no library.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any


class Late(ModuleType):
    """A module that is imported when one of its attributes is first accessed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


def late(name: str) -> Late:
    """A lazily imported module."""
    return Late(name)


@contextmanager
def absent(name: str) -> Iterator[None]:
    """Hide a library from imports within the block, for libraries to which it is an optional dependency.

    A library that is already imported stays available.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # Python's way to refuse an import
    try:
        yield
    finally:
        del sys.modules[name]
