"""Which colour the columns, bars and lines of a figure have.

A system has the palette's colour; series that differ in something else have other ones, from light to dark if
they rise with a number. Must not draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from repro.reports.figures.paint import OURS, colour, ramp
from repro.reports.figures.palette import Palette
from repro.reports.figures.shown import Shown
from repro.reports.spec.spec import ColumnSpec


def column_systems(columns: Sequence[ColumnSpec], palette: Palette) -> list[str]:
    """The system of each column, by its labels or its heading; "" for a column without one.

    Of comparisons it is the one in which they differ.

    Columns of the same system have none: they differ in something else.
    """
    each = [[*palette.systems_of(column.where), *palette.systems_of(column.over)] for column in columns]
    each = [own or [c.heading] * (c.heading in palette.systems) for own, c in zip(each, columns, strict=True)]
    common = set.intersection(*map(set, each)) if len(each) > 1 else set()
    found = [next((one for one in own if one not in common), "") for own in each]
    return [one if found.count(one) == 1 else "" for one in found]


def column_colours(shown: Shown) -> list[str]:
    """The colour of each column, for columns on one axis."""
    systems = column_systems(shown.columns, shown.palette)
    if not any(systems):
        return neutral([column.where for column in shown.columns])
    known = shown.palette.colours([one for one in systems if one])
    others = iter(range(len(systems)))
    return [known[one] if one else colour(next(others)) for one in systems]


def bar_colours(shown: Shown, column: ColumnSpec) -> list[str]:
    """The colour of each row's bar in a panel of one column."""
    palette = shown.palette
    if not palette.own:
        return [OURS] * len(shown.rows)
    rows = row_systems(shown)
    if len(set(rows)) > 1:
        known = palette.colours(rows)
        return [known[one] if one else OURS for one in rows]
    own = [] if column.baseline else palette.systems_of(column.where)
    return [palette.colours(own)[own[0]] if own else OURS] * len(rows)


def row_systems(shown: Shown) -> list[str]:
    """The system of each row, by its labels or its name; "" for a row that names none."""
    palette = shown.palette
    named = [row.name if row.name in palette.systems else "" for row in shown.rows]
    return [next(iter(palette.systems_of(r.labels)), name) for r, name in zip(shown.rows, named, strict=True)]


def neutral(labels: Sequence[Mapping[str, str]]) -> list[str]:
    """Colours of series with these labels, which differ in no system."""
    if len(labels) == 1:
        return [OURS]
    names = {name for one in labels for name in one}
    if any(_rising([one.get(name, "") for one in labels]) for name in names):
        return ramp(len(labels))
    return [colour(i) for i in range(len(labels))]


def _rising(values: Sequence[str]) -> bool:
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return False
    return all(one < other for one, other in pairwise(numbers))
