"""A Hydra sweeper for grids: the product of axes, times a list of settings that form no product.

It is here because Hydra accepts sweepers of the package `hydra_plugins` only. Must not know what a setting
means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override

LATER = "@{"
"""Stands for `${` in `params` and `cells`. Hydra resolves interpolations when it makes the sweeper, for all
cells alike; these wait for the configuration of each cell."""


class GridSweeper(BasicSweeper):
    """Hydra's basic sweeper, which also goes through `cells`: overrides that hold together.

    A setting of the command line replaces that of an axis or of all cells; what it makes equal runs once.
    """

    def __init__(
        self,
        max_batch_size: int | None,
        params: dict[str, str] | None = None,
        cells: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """As the basic sweeper; `cells` are overrides by setting."""
        # The base class's `__init__` cannot be called: Hydra loads its plugins' modules a second time, and
        # the class that `super(BasicSweeper, self)` names in there is then another one.
        self.max_batch_size = max_batch_size
        self.params = {name: _resolvable(value) for name, value in (params or {}).items()}
        self.overrides = None
        self.batch_index = 0
        self.hydra_context = None
        self.config = None
        self.launcher = None
        self.cells = [{str(name): _resolvable(value) for name, value in cell.items()} for cell in cells]

    def split_arguments(  # type: ignore[override]  # of the base class's, which is static
        self, overrides: list[Override], max_batch_size: int | None
    ) -> list[list[list[str]]]:
        """All jobs, in batches of at most this many."""
        [jobs] = super().split_arguments(overrides, None)
        if self.cells:
            given = {override.get_key_element().lstrip("+") for override in overrides}
            parts = [_without(cell, given) for cell in self.cells]
            jobs = [[*job, *part] for job in jobs for part in parts]
            jobs = [list(job) for job in dict.fromkeys(map(tuple, jobs))]
        return [list(batch) for batch in self.split_overrides_to_chunks(jobs, max_batch_size)]


def _resolvable(value: object) -> str:
    """A value as an override writes it, with interpolations."""
    return str(value).replace(LATER, "${")


def _without(cell: Mapping[str, str], given: set[str]) -> list[str]:
    """A cell's overrides, without settings that are given otherwise, and what lies below these."""

    def replaced(name: str) -> bool:
        return name in given or any(name.startswith(f"{one}.") for one in given)

    return [f"{_mark(name)}{name}={value}" for name, value in cell.items() if not replaced(name.lstrip("+"))]


def _mark(name: str) -> str:
    """A label need not be there before."""
    return "++" if name.startswith("labels.") else ""
