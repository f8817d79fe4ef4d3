"""repro: research on running language models on phones and boards, reproduced and compared.

`run`, `sweep`, `cells` and `table` are the command's work from Python; docs/run.md shows them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repro.experiments.python_interface import cells, run, sweep, table

__all__ = ["cells", "run", "sweep", "table"]


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def __getattr__(name: str) -> Any:
    """The functions of `__all__`, imported at their first use: `import repro` alone imports nothing more."""
    if name not in __all__:
        raise AttributeError(f"module 'repro' has no attribute {name!r}")
    from repro.experiments import python_interface

    return getattr(python_interface, name)
