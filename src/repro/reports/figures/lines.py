"""Line plots: our values over a numeric label, with published values as diamonds.

Owns how lines are drawn. `shown` chooses the values, `colouring` the colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from repro.core.errors import InputError
from repro.reports.figures.colouring import column_systems, neutral
from repro.reports.figures.paint import GREY, SERIES, canvas, diamond_key, diamonds, tidy
from repro.reports.figures.shown import Shown, ends_of
from repro.reports.tables.table import Entry, TableRow

Points = list[tuple[float, Entry]]

Style = Literal["-", "--", ":", "-."]
STYLES: tuple[Style, ...] = ("-", "--", ":", "-.")
"""Line styles of series that share a colour."""

ABREAST, PANEL, HEIGHT = 3, 2.5, 2.5
"""The most panels side by side, and inches of a panel."""

HEADROOM = 1.06
"""How far an axis goes beyond the highest value."""

MOST_TICKS = 9
"""Values of x that are all written at the axis; of more the axis has ticks of its own."""


@dataclass(frozen=True)
class Series:
    """A line: its panel, its name, and its system with the rest of the name if it has one."""

    panel: str
    name: str
    system: str = ""
    rest: str = ""


Look = tuple[str, Style]
"""Colour and line style."""


def lines(shown: Shown) -> tuple[Figure, list[Artist]]:
    """One panel per value of the label `panel`, one line per column and per value of the remaining labels.

    Raises:
        InputError: the label of the x axis is not a number.
    """
    found = series(shown)
    looks = _looks(list(found), shown)
    titles = list(dict.fromkeys(each.panel for each in found)) or [""]
    across = min(len(titles), ABREAST)
    down = ceil(len(titles) / across)
    picture = canvas(0.8 + max(PANEL * across, 3.4), 0.9 + HEIGHT * down)
    axes = list(picture.subplots(down, across, squeeze=False).flat)
    for i, (panel, title) in enumerate(zip(axes, titles, strict=False)):
        own = {each: points for each, points in found.items() if each.panel == title}
        for each, points in own.items():
            _line(panel, points, looks[each.name], several=len(looks) > 1)
        _level(panel, shown, title)
        _scales(panel, shown, title)
        if i % across == 0:
            panel.set_ylabel(shown.heading, fontsize=9)
    for panel in axes[len(titles) :]:
        panel.set_visible(False)
    if better := shown.columns[0].better:
        axes[min(across, len(titles)) - 1].set_title(
            f"{better} is better", fontsize=7.5, color=GREY, loc="right"
        )
    return picture, _legend(list(found), looks, shown)


def series(shown: Shown) -> dict[Series, Points]:
    """The lines, those in `names` first in that order, each with its entries sorted by x."""
    spec, found = shown.spec, dict[Series, Points]()
    by_column = column_systems(shown.columns, shown.palette)
    pairs = zip(shown.rows, shown.lines, strict=True)
    for row, entries in sorted(pairs, key=lambda pair: _order(pair[0], list(spec.names))):
        others = {n: spec.names.get(v, v) for n, v in row.labels.items() if n not in (spec.x, spec.panel)}
        own = {n: shown.palette.systems_of({n: row.labels[n]}) for n in others}
        row_system = next((systems[0] for systems in own.values() if systems), "")
        for column, entry, column_system in zip(shown.columns, entries, by_column, strict=True):
            heading = [column.heading] if len(shown.columns) > 1 else []
            rest = [text for n, text in others.items() if column_system or not own[n]]
            rest += [] if column_system else heading
            title = row.labels.get(spec.panel, "")
            name = ", ".join([*others.values(), *heading])
            each = Series(spec.names.get(title, title), name, column_system or row_system, ", ".join(rest))
            found.setdefault(each, []).append((_place(row, spec.x), entry))
    return {each: sorted(points, key=lambda point: point[0]) for each, points in found.items()}


def _looks(found: Sequence[Series], shown: Shown) -> dict[str, Look]:
    """Colour and style of each line by its name: systems by colour and the rest by style, if both differ."""
    names = {each.name: each for each in found}
    if _by_system(found):
        shades = shown.palette.colours([each.system for each in found])
        rests = list(dict.fromkeys(each.rest for each in found))
        return {n: (shades[e.system], STYLES[rests.index(e.rest) % len(STYLES)]) for n, e in names.items()}
    shades_of = neutral([{"name": name} for name in names])
    return {
        name: (shade, STYLES[i // len(SERIES) % len(STYLES)])
        for i, (name, shade) in enumerate(zip(names, shades_of, strict=True))
    }


def _by_system(found: Sequence[Series]) -> bool:
    return all(each.system for each in found) and len({each.system for each in found}) > 1


def _legend(found: Sequence[Series], looks: Mapping[str, Look], shown: Shown) -> list[Artist]:
    """An entry per line; one per system and one per style if lines differ in both."""
    rests = list(dict.fromkeys(each.rest for each in found))
    systems = list(dict.fromkeys(each.system for each in found))
    if _by_system(found) and len(rests) > 1:
        shades = shown.palette.colours(systems)
        keys = [Line2D([], [], color=shades[one], marker="o", markersize=4, label=one) for one in systems]
        keys += [
            Line2D([], [], color=GREY, linestyle=STYLES[i % len(STYLES)], label=rest)
            for i, rest in enumerate(rests)
        ]
    else:
        keys = [
            Line2D([], [], color=shade, linestyle=style, marker="o", markersize=4, label=name or "ours")
            for name, (shade, style) in looks.items()
        ]
    if any("fitted" in entry.marks for entry in shown.entries):
        keys.append(
            Line2D([], [], color=GREY, marker="o", markerfacecolor="white", lw=0, label="hollow: fitted")
        )
    if shown.levels:
        keys.append(Line2D([], [], color="black", linewidth=0.9, linestyle=(0, (6, 3)), label=shown.level))
    if any(entry.published for entry in shown.entries):
        keys.append(diamond_key())
    return [*keys]


def _order(row: TableRow, names: list[str]) -> list[int]:
    return [names.index(label) if label in names else len(names) for label in row.labels.values()]


def _place(row: TableRow, name: str) -> float:
    try:
        return float(row.labels[name])
    except (KeyError, ValueError):
        raise InputError(f"row {row.id!r} has no number as its label {name!r}, the picture's x") from None


def _line(panel: Axes, points: Points, look: Look, several: bool) -> None:
    """Our points joined by a line, hollow if fitted, with error bars; the published values at the same x."""
    shade, style = look
    ours = [(x, float(e.ours)) for x, e in points if isinstance(e.ours, (int, float))]
    panel.plot([x for x, _ in ours], [y for _, y in ours], color=shade, linewidth=1.6, linestyle=style)
    size = 4 if len(ours) <= 2 * MOST_TICKS else 2.5
    bars = [(x, *ends) for x, entry in points if (ends := ends_of(entry))]
    if bars:
        panel.vlines(*zip(*bars, strict=True), color=shade, linewidth=0.9)
    for face, is_fitted in ((shade, False), ("white", True)):
        marked = [(x, e.ours) for x, e in points if ("fitted" in e.marks) is is_fitted]
        marked = [(x, y) for x, y in marked if isinstance(y, (int, float))]
        if marked:
            panel.plot(*zip(*marked, strict=True), "o", color=shade, markerfacecolor=face, markersize=size)
    for x, entry in points:
        if entry.published:
            ends_given = entry.published.ends
            diamonds(panel, [x] * len(ends_given), ends_given, shade if several else "white")


def _level(panel: Axes, shown: Shown, title: str) -> None:
    """A dashed line of what stands beside all series, such as chance."""
    spec = shown.spec
    rows = [
        (row, entry)
        for row, entry in zip(shown.rows, shown.levels, strict=bool(shown.levels))
        if spec.names.get(label := row.labels.get(spec.panel, ""), label) == title
    ]
    points = sorted((_place(r, spec.x), float(e.ours)) for r, e in rows if isinstance(e.ours, (int, float)))
    if points:
        panel.plot(
            [x for x, _ in points], [y for _, y in points], color="black", lw=0.9, linestyle=(0, (6, 3))
        )


def _scales(panel: Axes, shown: Shown, title: str) -> None:
    spec = shown.spec
    tidy(panel, "both")
    places = sorted({_place(row, spec.x) for row in shown.rows})
    if spec.log:
        panel.set_xscale("log")
    if len(places) <= MOST_TICKS:
        panel.set_xticks(places, [f"{place:g}" for place in places])
    panel.minorticks_off()
    if panel.dataLim.y0 >= 0:
        panel.set_ylim(0, panel.dataLim.y1 * HEADROOM or 1.0)
    panel.set_xlabel(spec.x_heading or spec.x, fontsize=9)
    panel.set_title(title, fontsize=9, loc="left")
