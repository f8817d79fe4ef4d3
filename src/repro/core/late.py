"""Libraries that are imported when they are first used.

Torch alone takes longer to import than most commands take to answer. A module that mentions it without
needing it at once writes

    if TYPE_CHECKING:
        import torch
        from torch import Tensor
    else:
        torch = late("torch")

Knows no library.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any


class Late(ModuleType):
    """Stands for a module, and imports it when one of its attributes is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


def late(name: str) -> Late:
    """The module of a name, imported when it is first used."""
    return Late(name)


@contextmanager
def absent(name: str) -> Iterator[None]:
    """As if a library were not installed, for one that imports it only to offer more.

    Where it is imported already it stays.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # Python's way to refuse an import
    try:
        yield
    finally:
        del sys.modules[name]
