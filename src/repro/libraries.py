"""Libraries that take longer to import than most commands to run, each imported at its first use.

Owns their usual names, and those of their types, which only annotations may use. Uses none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias


class Late(ModuleType):
    """A module that is imported when one of its attributes is first accessed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


if TYPE_CHECKING:
    import gguf
    import httpx2
    import jinja2
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import torch
    import torch.nn.functional as F
    from numpy.typing import NDArray
    from pyarrow import parquet
    from torch import Tensor
else:
    gguf, httpx2, jinja2, np, pd = map(Late, ("gguf", "httpx2", "jinja2", "numpy", "pandas"))
    pa, parquet, torch, F = map(Late, ("pyarrow", "pyarrow.parquet", "torch", "torch.nn.functional"))
    NDArray = Tensor = None

Array: TypeAlias = "NDArray[np.float64]"
"""Numbers of any shape, read by type checkers alone."""

__all__ = [
    "Array",
    "F",
    "NDArray",
    "Tensor",
    "gguf",
    "httpx2",
    "jinja2",
    "np",
    "pa",
    "parquet",
    "pd",
    "torch",
]


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
