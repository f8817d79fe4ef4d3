"""Axes of bar charts, and where the values stand: at the end of our bar, never at a published one.

Owns the fit of values into a panel. Must not know tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from repro.reports.figures.paint import GREY, ink, width_of

GAP = 4.0
"""Points between a bar's end and its value."""
GROWTH, STEPS = 1.02, 120
"""An axis grows by this factor until all values fit, at most so many times."""


@dataclass(frozen=True)
class Value:
    """A value beside its bar.

    Attributes:
        y: the bar's place.
        end: the bar's end; 0 for what is no number.
        words: the value as text.
        size: font size.
        shade: the bar's colour, "" without a bar.
        ends: those of the error bar, if there is one.
        published: published values at the same bar, and what else is marked there.
    """

    y: float
    end: float
    words: str
    size: float
    shade: str = ""
    ends: tuple[float, float] | None = None
    published: tuple[float, ...] = ()

    @property
    def far(self) -> float:
        """The end of the bar and its error bar, away from zero."""
        places: list[float] = [self.end, *(self.ends or ())]
        return max(places) if self.end >= 0 else min(places)

    @property
    def reach(self) -> tuple[float, ...]:
        """Everything that the axis must show."""
        return (self.end, *(self.ends or ()), *self.published)


@dataclass(frozen=True)
class Scale:
    """A horizontal axis from `low` to `high`, `room` points long."""

    low: float
    high: float
    room: float
    log: bool

    def at(self, value: float) -> float:
        """Points from the left edge; values at or left of the axis' beginning are on it."""
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return share * self.room

    def grown(self, left: bool, right: bool) -> Scale:
        """The axis, a little longer at its ends."""
        if self.log:
            return Scale(self.low, self.high * (self.high / self.low) ** (GROWTH - 1), self.room, True)
        more = (self.high - self.low) * (GROWTH - 1)
        return Scale(self.low - more * left, self.high + more * right, self.room, False)


def fit(picture: Figure, panels: Sequence[tuple[Axes, Sequence[Value]]], log: bool = False) -> None:
    """Give panels an axis that has room for all values, and place these.

    Ticks and the axis' line end where the data do.
    """
    for panel, values in panels:
        axis(panel, *_range(values, log), log)
    picture.draw_without_rendering()  # which lays the panels out
    for panel, values in panels:
        room = panel.get_window_extent().width / picture.dpi * 72
        scale = _with_room(Scale(*_range(values, log), room, log), values)
        panel.set_xlim(scale.low, scale.high)
        for value in values:
            _write(panel, value, scale)


def _range(values: Sequence[Value], log: bool) -> tuple[float, float]:
    """The least and the greatest number to show, zero among them on a linear axis."""
    numbers = [number for value in values for number in value.reach]
    if log:
        positive = [number for number in numbers if number > 0] or [1.0]
        return min(positive) / 2, max(positive)
    low, high = min(0.0, *numbers, 0.0), max(0.0, *numbers, 0.0)
    return (low, high) if high > low else (0.0, 1.0)


def _with_room(scale: Scale, values: Sequence[Value]) -> Scale:
    for _ in range(STEPS):
        spans = [_outside(value, scale) for value in values]
        left, right = any(start < 0 for start, _ in spans), any(end > scale.room for _, end in spans)
        if not left and not right:
            break
        scale = scale.grown(left, right)
    return scale


def _outside(value: Value, scale: Scale) -> tuple[float, float]:
    """Where the words begin and end, in points, if they stand beyond the bar."""
    far, wide = scale.at(value.far), width_of(value.words, value.size)
    return (far + GAP, far + GAP + wide) if value.end >= 0 else (far - GAP - wide, far - GAP)


def _write(panel: Axes, value: Value, scale: Scale) -> None:
    """Write beyond the bar's end; within it if a published value stands there and the bar is long enough."""
    marks = [scale.at(mark) for mark in value.published]
    covered = _hits(marks, *_outside(value, scale))
    within = covered and value.ends is None and value.shade and _fits_within(value, scale, marks)
    outwards = 1 if value.end >= 0 else -1
    panel.annotate(
        value.words,
        (value.end if within else value.far, value.y),
        (GAP * outwards * (-1 if within else 1), 0),
        textcoords="offset points",
        va="center",
        ha="left" if (outwards > 0) != bool(within) else "right",
        fontsize=value.size,
        color=(ink(value.shade) if within else "black") if value.shade else GREY,
        path_effects=[withStroke(linewidth=2.2, foreground="white")] if covered and not within else [],
        zorder=5,
    ).set_in_layout(False)


def _fits_within(value: Value, scale: Scale, marks: Sequence[float]) -> bool:
    zero = scale.at(scale.low if scale.log else 0.0)
    end, wide = scale.at(value.end), width_of(value.words, value.size) + 2 * GAP
    start, stop = (end - wide, end) if end >= zero else (end, end + wide)
    return abs(end - zero) >= wide and not _hits(marks, start, stop)


def _hits(marks: Sequence[float], start: float, end: float) -> bool:
    return any(start - GAP < mark < end + GAP for mark in marks)


def axis(panel: Axes, low: float, high: float, log: bool) -> None:
    """A horizontal axis from `low` to `high`, with ticks and a line that do not go beyond; zero is marked."""
    if log:
        panel.set_xscale("log")
        panel.set_xlim(low, high)
        places = _powers(low, high)
    else:
        panel.set_xlim(low, high)
        steps = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        places = [float(place) for place in steps if low <= place <= high * (1 + 1e-9)]
    panel.set_xticks(places, [f"{place:.6g}" for place in places])
    panel.minorticks_off()
    panel.spines["bottom"].set_bounds(low, high)
    if low < 0:
        panel.axvline(0, color="black", linewidth=0.8)
        panel.spines["left"].set_visible(False)


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten between two numbers, with 2 and 5 times them if there are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        found = [f * 10.0**e for e in exponents for f in factors if low <= f * 10.0**e <= high]
        if len(found) >= 3:
            break
    return found
