"""Curves over a measured column: one per column, with marked points beside them and published x as uprights.

Owns how they are drawn. `shown` chooses the values, `colouring` the colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from repro.core.errors import InputError
from repro.reports.figures.colouring import column_colours
from repro.reports.figures.lines import Style
from repro.reports.figures.paint import GREY, canvas, tidy
from repro.reports.figures.shown import Shown, ends_of
from repro.reports.reference.reference import find, load_cells
from repro.reports.tables.table import Entry, TableRow, is_number

ABREAST, PANEL, HEIGHT = 2, 4.2, 3.0
"""The most panels side by side, and inches of a panel."""

POINTS = ("s", "^", "D", "v", "P", "X")
"""Shapes of marked rows."""

UPRIGHTS: tuple[Style, ...] = (":", "-.", "--")
"""Styles of published x."""


def curves(shown: Shown) -> tuple[Figure, list[Artist]]:
    """One panel per value of the label `panel`; rows named by a number are joined, others are marked."""
    titles = list(dict.fromkeys(row.labels[shown.spec.panel] for row in shown.rows)) or [""]
    across = min(len(titles), ABREAST)
    down = ceil(len(titles) / across)
    picture = canvas(0.6 + PANEL * across, 1.0 + HEIGHT * down)
    axes = list(picture.subplots(down, across, squeeze=False).flat)
    shades = column_colours(shown)
    shapes = {name: POINTS[i % len(POINTS)] for i, name in enumerate(_marked(shown))}
    for i, (panel, title) in enumerate(zip(axes, titles, strict=False)):
        _panel(panel, shown, title, shades, shapes)
        if i % across == 0:
            panel.set_ylabel(shown.heading, fontsize=9)
    for panel in axes[len(titles) :]:
        panel.set_visible(False)
    keys = [
        Line2D([], [], color=shade, marker="o", markersize=3.5, label=column.heading)
        for column, shade in zip(shown.columns, shades, strict=True)
    ]
    keys += [Line2D([], [], color=GREY, marker=shapes[name], lw=0, label=name) for name in shapes]
    keys += [
        Line2D([], [], color=GREY, linestyle=style, lw=1, label=name)
        for (name, _), style in zip(shown.spec.uprights.items(), UPRIGHTS, strict=False)
    ]
    return picture, [*keys]


def _marked(shown: Shown) -> list[str]:
    panel = shown.spec.panel
    return list(dict.fromkeys(_name(row, shown) for row in shown.rows if not row.is_point(panel)))


def _name(row: TableRow, shown: Shown) -> str:
    spec = shown.spec
    return ", ".join(spec.names.get(label, label) for name, label in row.labels.items() if name != spec.panel)


def _panel(panel: Axes, shown: Shown, title: str, shades: Sequence[str], shapes: dict[str, str]) -> None:
    spec = shown.spec
    rows = [
        (row, entries, float(x.ours))
        for row, entries, x in zip(shown.rows, shown.lines, shown.places, strict=True)
        if row.labels[spec.panel] == title and isinstance(x.ours, (int, float))
    ]
    for i, shade in enumerate(shades):
        curve = sorted((x, i, entries[i]) for row, entries, x in rows if row.is_point(spec.panel))
        there = [(x, entry.ours) for x, _, entry in curve if isinstance(entry.ours, (int, float))]
        panel.plot([x for x, _ in there], [y for _, y in there], color=shade, linewidth=1.5)
        for row, entries, x in rows:
            shape = "o" if row.is_point(spec.panel) else shapes[_name(row, shown)]
            _point(panel, x, entries[i], shade, shape)
    for (_, places), style in zip(spec.uprights.items(), UPRIGHTS, strict=False):
        for place in places:
            panel.axvline(_published(place), color=GREY, linestyle=style, linewidth=0.8, zorder=0)
    if any(column.baseline for column in shown.columns):
        panel.axhline(1, color="black", linewidth=0.8, linestyle=(0, (6, 3)))
    tidy(panel, "both")
    panel.set_ylim(0, panel.dataLim.y1 * 1.05 or 1.0)
    panel.set_xlabel(spec.x_heading or spec.x, fontsize=9)
    panel.set_title(spec.names.get(title, title), fontsize=8.5, loc="left")


def _point(panel: Axes, x: float, entry: Entry, shade: str, shape: str) -> None:
    if not isinstance(entry.ours, (int, float)):
        return
    if ends := ends_of(entry):
        panel.vlines(x, *ends, color=shade, linewidth=0.8)
    size = 3.5 if shape == "o" else 5.5
    panel.plot(
        [x], [entry.ours], shape, color=shade, markersize=size, markeredgecolor="white", markeredgewidth=0.4
    )


def _published(place: str) -> float:
    """A place on the x axis: a number, or the id of a published value."""
    value = float(place) if is_number(place) else find(load_cells(), place).value_low
    if value is None:
        raise InputError(f"the published value {place!r} has no lower end, at which a line would stand")
    return value
