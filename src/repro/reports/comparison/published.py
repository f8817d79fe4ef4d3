"""A published value in the unit of our figure.

Owns units and ends of published values. Must not know our figures.
"""

from __future__ import annotations

from dataclasses import dataclass

from repro.core.errors import InputError
from repro.records.record import Scalar
from repro.reports.reference.reference import PublishedCell
from repro.reports.spec.units import factor


@dataclass(frozen=True)
class Published:
    """A published value in the column's unit; one end is `None` for "up to" and "more than"."""

    id: str
    low: float | None
    high: float | None

    @property
    def ends(self) -> list[float]:
        """The ends that are given."""
        return [value for value in (self.low, self.high) if value is not None]

    @property
    def bound(self) -> bool:
        """Whether only one end is printed."""
        return self.low is None or self.high is None

    def nearest(self, ours: float) -> float | None:
        """The published number that is nearest to ours, ours itself inside a range; None for a bound."""
        return None if self.low is None or self.high is None else min(max(ours, self.low), self.high)

    def ratio(self, ours: Scalar) -> float | None:
        """Ours over the nearest published number; None for a bound, a published zero and a text of ours."""
        if isinstance(ours, str) or ours is None or not (near := self.nearest(ours)):
            return None
        return ours / near

    def difference(self, ours: Scalar) -> float | None:
        """Ours less the nearest published number; None for a bound and a text of ours."""
        if isinstance(ours, str) or ours is None or (near := self.nearest(ours)) is None:
            return None
        return ours - near


def in_unit(cell: PublishedCell, unit: str, where: str) -> Published:
    """A published cell in another unit; InputError, naming `where`, if it cannot be converted."""
    times = factor(cell.unit, unit)
    if times is None:
        raise InputError(f"cell {cell.id!r} is in {cell.unit!r} and {where} in {unit!r}")
    return Published(cell.id, _times(cell.value_low, times), _times(cell.value_high, times))


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
