"""Which kind of cell a configuration makes: one that decodes, or one whose answers are chosen by likelihood.

Owns that choice and nothing of what the kinds do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repro import compute as served
from repro.cell import Cell
from repro.compute import Outcome, Progress
from repro.core.errors import InputError
from repro.core.record import Record
from repro.dense_cell import DenseCell
from repro.probed import ProbedCell
from repro.scored import ScoredCell
from repro.served import ServedCell

DENSE: tuple[type[DenseCell], ...] = (ScoredCell, ProbedCell, ServedCell)
"""The kinds that decode nothing; a cell is of one if its configuration has the kind's group."""

AnyCell = Cell | DenseCell


def dense(config: Mapping[str, Any]) -> type[DenseCell] | None:
    """The kind without decoding that a resolved configuration makes; None for one that decodes."""
    return next((kind for kind in DENSE if config.get(kind.group)), None)


def made(config: Mapping[str, Any]) -> AnyCell:
    """The cell that a resolved configuration describes; InputError if it cannot work."""
    kind = dense(config)
    return kind(config) if kind else Cell(config)


def compute(cell: AnyCell, progress: Progress) -> Outcome:
    """What a cell leaves behind; raises whatever went wrong."""
    if isinstance(cell, Cell):
        return served.compute(cell, progress)
    record, rounds = cell.compute(progress)
    return Outcome(record, [dict(one) for one in rounds], timeline="")


def failed(cell: AnyCell, error: str) -> Record:
    """The record of a cell that could not be computed, from its traceback."""
    return served.failed(cell, error) if isinstance(cell, Cell) else cell.failed(error)


def is_current(record: Record) -> bool:
    """Whether the components that made a record have the versions of today."""
    try:
        return made(record.provenance.config).versions == record.provenance.versions
    except (InputError, KeyError):  # a component or a setting of it is gone
        return False
