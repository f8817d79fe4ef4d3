"""Which kind of cell a configuration makes: one that decodes, or one whose answers are chosen by likelihood.

Owns that choice and nothing of what the kinds do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from repro.cell import Cell
from repro.core.errors import InputError
from repro.core.record import Record
from repro.dense_cell import DenseCell

if TYPE_CHECKING:
    from repro.compute import Outcome, Progress

DENSE = ("compression", "probe", "service")
"""Groups whose cells decode nothing; a cell is of that kind if its configuration has the group."""

AnyCell = Cell | DenseCell


def dense(config: Mapping[str, Any]) -> type[DenseCell] | None:
    """The kind without decoding that a resolved configuration makes; None for one that decodes."""
    group = next((group for group in DENSE if config.get(group)), None)
    return _kind(group) if group else None


def _kind(group: str) -> type[DenseCell]:
    """The kind of a group; each is imported when there is a cell of it."""
    if group == "compression":
        from repro.scored import ScoredCell

        return ScoredCell
    if group == "probe":
        from repro.probed import ProbedCell

        return ProbedCell
    from repro.served import ServedCell

    return ServedCell


def made(config: Mapping[str, Any]) -> AnyCell:
    """The cell that a resolved configuration describes; InputError if it cannot work."""
    kind = dense(config)
    return kind(config) if kind else Cell(config)


def compute(cell: AnyCell, progress: Progress) -> Outcome:
    """What a cell leaves behind; raises whatever went wrong."""
    from repro import compute as served  # late, with torch

    if isinstance(cell, Cell):
        return served.compute(cell, progress)
    record, rounds = cell.compute(progress)
    return served.Outcome(record, [dict(one) for one in rounds], timeline="")


def failed(cell: AnyCell, error: str) -> Record:
    """The record of a cell that could not be computed, from its traceback."""
    if not isinstance(cell, Cell):
        return cell.failed(error)
    from repro import compute as served

    return served.failed(cell, error)


def is_current(record: Record) -> bool:
    """Whether the components that made a record have the versions of today."""
    try:
        return made(record.provenance.config).versions == record.provenance.versions
    except (InputError, KeyError):  # a component or a setting of it is gone
        return False
