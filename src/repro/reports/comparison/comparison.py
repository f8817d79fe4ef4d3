"""A comparison: a published value in the unit of our figure, our figure for it, and whether the paper's
statement holds.

Owns units, distances, statements and verdicts (docs/evidence.md). Must not know tables, formats or pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from repro.core.errors import InputError
from repro.records.record import FEWEST
from repro.reports.reference.reference import PublishedCell
from repro.reports.spec.units import factor

Ends = tuple[float, float]
Verdict = Literal["holds", "fails", "undetermined"]

TOLERANCE = 0.10
"""Relative difference within which our figure agrees with a printed number."""

POINT_LIMIT = 2.0
"""The same of accuracies, in percentage points."""

ACCURACY_METRICS = ("accuracy", "rouge_l", "draft_token_correctness", "accepted_token_retention")
"""Beginnings of the metrics whose errors are differences in points."""

FAMILIES: Mapping[str, Callable[[PublishedCell], bool]] = {
    "accuracies": lambda c: is_accuracy(c),
    "acceptance, agreement": lambda c: c.metric.startswith("acceptance") or "draft_tokens" in c.metric,
    "energy, ratios": lambda c: "energy" in c.metric and c.unit in ("x", "%"),
    "energy, J": lambda c: "energy" in c.metric,
    "memory": lambda c: "memory" in c.metric,
    "speed-ups and ratios of times": lambda c: c.unit == "x",
    "times and throughputs": lambda c: (
        any(word in c.metric for word in ("latency", "throughput", "_time", "ttft", "tpot")) and c.unit != "%"
    ),
    "shares, counts, other": lambda c: True,
}
"""Metric families in the order in which they are tried."""


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

    def nearest(self, our_value: float) -> float | None:
        """The published number that is nearest to ours, ours itself inside a range; None for a bound."""
        return None if self.low is None or self.high is None else min(max(our_value, self.low), self.high)

    def ratio(self, our_value: float) -> float | None:
        """Ours over the nearest published number; None for a bound and a published zero."""
        nearest_value = self.nearest(our_value)
        return our_value / nearest_value if nearest_value else None


@dataclass(frozen=True)
class Figure:
    """One of our numbers.

    Attributes:
        value: in the comparison's unit.
        interval: 95% over prompts, rows or requests; None if there is none.
        band: range over the assumed numbers of its device and engine; None if it is not known.
    """

    value: float
    interval: Ends | None = None
    band: Ends | None = None

    @property
    def hull(self) -> Ends:
        """From the least to the most that value, interval and band contain."""
        numbers = [self.value, *(self.interval or ()), *(self.band or ())]
        return min(numbers), max(numbers)


@dataclass(frozen=True)
class Comparison:
    """A published value beside ours.

    Attributes:
        cell: what is published.
        published: the same in the unit of ours.
        unit: of both.
        ours: our figure; two for a range, the least and the most; none if we have no figure.
        n: distinct texts, rows or requests that it rests on; None if it rests on none.
        marks: keys of `tables.table.MARKS`.
        table, row, column: where ours stands.
        cells, baseline: beginnings of the keys of the cells that it is made from and compared with.
        certain: why it cannot miss; "" if it can.
    """

    cell: PublishedCell
    published: Published
    unit: str
    ours: tuple[Figure, ...] = ()
    n: int | None = None
    marks: tuple[str, ...] = ()
    table: str = ""
    row: str = ""
    column: str = ""
    cells: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()
    certain: str = ""

    @property
    def is_fitted(self) -> bool:
        """Whether ours was used in a fit or follows from one."""
        return "fitted" in self.marks

    @property
    def in_points(self) -> bool:
        """Whether its error is a difference in percentage points."""
        return is_accuracy(self.cell)

    @property
    def inside(self) -> bool:
        """Whether a range is published and ours lies in it."""
        published = self.published
        return (
            bool(self.ours)
            and not published.bound
            and published.low != published.high
            and all(self._distance(figure.value) == 0 for figure in self.ours)
        )

    @cached_property
    def error(self) -> float | None:
        """Distance to the nearer published end, signed: relative, or in points of an accuracy.

        Of two figures the farther one counts. None without a figure of ours and for a bound.
        """
        if self.published.bound or not self.ours:
            return None
        distances = [self._distance(figure.value) for figure in self.ours]
        known_distances = [distance for distance in distances if distance is not None]
        return max(known_distances, key=abs) if len(known_distances) == len(distances) else None

    @property
    def breaks_bound(self) -> bool:
        """Whether only a bound is published, and ours does not meet it."""
        return bool(self.ours) and self.published.bound and self.point == "fails"

    @property
    def is_miss(self) -> bool:
        """Whether ours is off by more than a quarter, or than ten points of an accuracy."""
        return self.error is not None and abs(self.error) > (MISS_POINTS if self.in_points else MISS)

    @cached_property
    def statements(self) -> tuple[Ends, ...]:
        """For each of our figures the numbers that the printed value allows."""
        low, high = self.published.low, self.published.high
        if low is None and high is not None:
            statement = self._about(high) if self._is_up_to else (-math.inf, high)
            return ((-math.inf, math.inf), statement)[-len(self.ours) :]
        if high is None and low is not None:
            return ((low, math.inf), (-math.inf, math.inf))[: len(self.ours)]
        assert low is not None
        assert high is not None
        if len(self.ours) == 2:
            return self._about(low), self._about(high)
        return ((self._about(low)[0], self._about(high)[1]),)[: len(self.ours)]

    @property
    def point(self) -> Verdict | None:
        """The verdict on our figure alone; None without one."""
        if not self.ours:
            return None
        return _join(
            [_verdict((f.value, f.value), s) for f, s in zip(self.ours, self.statements, strict=True)]
        )

    @property
    def verdict(self) -> Verdict | None:
        """The verdict over the whole of interval and band; None without a figure of ours.

        It is undetermined if the figure rests on prompts or rows and no interval is known.
        """
        if not self.ours:
            return None
        pairs = zip(self.ours, self.statements, strict=True)
        verdict = _join([_verdict(figure.hull, statement) for figure, statement in pairs])
        return "undetermined" if self.sampled_without_interval else verdict

    @property
    def sampled_without_interval(self) -> bool:
        """Whether ours rests on prompts, rows or requests and one of its figures has no interval."""
        return self.n is not None and any(figure.interval is None for figure in self.ours)

    @property
    def decided_by(self) -> str:
        """What an undetermined verdict needs."""
        if self.sampled_without_interval:
            few = f"{FEWEST} or more prompts, rows or requests (now {self.n})"
            return (
                few if self.n is not None and self.n < FEWEST else "its parts by prompt, which are not kept"
            )
        remedies = [f"more than the {self.n} prompts, rows or requests"] if self.n is not None else []
        remedies += ["assumed numbers of the device"] if any(figure.band for figure in self.ours) else []
        return " or ".join(remedies)

    @property
    def distance(self) -> str:
        """How ours lies to the published value, in words."""
        if not self.ours:
            return "no figure"
        if self.inside:
            return "inside"
        if self.error is None:
            return self._to_bound() if self.published.bound else "printed as 0"
        side = "above" if self.error > 0 else "below"
        if self.in_points:
            return "equal" if self.error == 0 else f"{abs(self.error):.1f} points {side}"
        return "equal" if self.error == 0 else f"{_percent(self.error)} {side}"

    def _distance(self, value: float) -> float | None:
        """From the nearest published number to a value: relative or in points; None of a published zero."""
        nearest_value = self.published.nearest(value)
        if nearest_value is None or self.in_points:
            return None if nearest_value is None else value - nearest_value
        if nearest_value == value and self.published.low != self.published.high:
            return 0.0
        return None if nearest_value == 0 else (value - nearest_value) / abs(nearest_value)

    @property
    def _is_up_to(self) -> bool:
        """Whether an upper bound is an "up to", which is reached and not only kept."""
        return self.cell.note.lower().startswith("up to")

    def _about(self, value: float) -> Ends:
        """The numbers that agree with a printed one."""
        tolerance = POINT_LIMIT if self.in_points else abs(value) * TOLERANCE
        return value - tolerance, value + tolerance

    def _to_bound(self) -> str:
        low, high = self.published.low, self.published.high
        bound, value = (high, self.ours[-1].value) if high is not None else (low, self.ours[0].value)
        if not bound:
            return "bound kept" if self.point == "holds" else "bound broken"
        ratio = value / bound
        if high is not None and self._is_up_to:
            return f"reaches {ratio:.0%} of it"
        return "bound kept" if self.point == "holds" else f"bound broken, {_percent(ratio - 1)} beyond"


MISS = 0.25
"""Relative error above which a prediction needs a reason."""

MISS_POINTS = 10.0
"""The same of accuracies, in points."""


def is_accuracy(cell: PublishedCell) -> bool:
    """Whether errors of a published value are differences in points."""
    return cell.metric.startswith(ACCURACY_METRICS) and cell.unit in ("%", "percentage_point")


def family(cell: PublishedCell) -> str:
    """The metric family of a published value."""
    return next(name for name, belongs in FAMILIES.items() if belongs(cell))


def _verdict(hull: Ends, statement: Ends) -> Verdict:
    (low, high), (least, most) = hull, statement
    if least <= low and high <= most:
        return "holds"
    return "fails" if high < least or low > most else "undetermined"


def _join(verdicts: Sequence[Verdict]) -> Verdict:
    """A statement of two parts fails if one fails, and holds if both hold."""
    if "fails" in verdicts:
        return "fails"
    return "undetermined" if "undetermined" in verdicts else "holds"


def _percent(share: float) -> str:
    """A share in percent, with a decimal below 1%."""
    return f"{abs(share):.0%}" if abs(share) >= 0.01 else f"{abs(share):.1%}"


def in_unit(cell: PublishedCell, unit: str, where: str) -> Published:
    """A published cell in another unit; InputError, naming `where`, if it cannot be converted."""
    multiplier = factor(cell.unit, unit)
    if multiplier is None:
        raise InputError(f"cell {cell.id!r} is in {cell.unit!r} and {where} in {unit!r}")
    low, high = (None if value is None else value * multiplier for value in (cell.value_low, cell.value_high))
    return Published(cell.id, low, high)
