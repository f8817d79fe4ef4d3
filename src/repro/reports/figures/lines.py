"""Line plots: our values over a numeric label, with published values as diamonds.

Owns how lines are drawn. `shown` chooses the values.
"""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from repro.core.errors import InputError
from repro.reports.figures.paint import GREY, canvas, colour, diamonds, tidy
from repro.reports.figures.shown import Shown
from repro.reports.tables.table import Entry, TableRow

Points = list[tuple[float, Entry]]


class Series(NamedTuple):
    """A line's panel and name."""

    panel: str
    name: str


def lines(shown: Shown) -> tuple[Figure, list[Artist]]:
    """One panel per value of the label `panel`, one line per column and per value of the remaining labels.

    Raises:
        InputError: the label of the x axis is not a number.
    """
    found = series(shown)
    names = list(dict.fromkeys(each.name for each in found))
    titles = list(dict.fromkeys(each.panel for each in found)) or [""]
    picture = canvas(1.0 + 3.4 * len(titles), 3.4)
    axes = picture.subplots(1, len(titles), squeeze=False)[0]
    for panel, title in zip(axes, titles, strict=True):
        for each, points in found.items():
            if each.panel == title:
                _line(panel, points, colour(names.index(each.name)), several=len(names) > 1)
        _scales(panel, shown, title)
    axes[0].set_ylabel(shown.heading, fontsize=9)
    if better := shown.columns[0].better:
        axes[-1].set_title(f"{better} is better", fontsize=7.5, color=GREY, loc="right")
    keys = [
        Line2D([], [], color=colour(i), marker="o", markersize=4, label=name or "ours")
        for i, name in enumerate(names)
    ]
    return picture, [*keys]


def series(shown: Shown) -> dict[Series, Points]:
    """The lines, those in `names` first in that order, each with its entries sorted by x."""
    spec, found = shown.spec, dict[Series, Points]()
    pairs = zip(shown.rows, shown.lines, strict=True)
    for row, entries in sorted(pairs, key=lambda pair: _order(pair[0], list(spec.names))):
        others = [v for name, v in row.labels.items() if name not in (spec.x, spec.panel)]
        for column, entry in zip(shown.columns, entries, strict=True):
            own = [column.heading] if len(shown.columns) > 1 else []
            name = ", ".join([spec.names.get(other, other) for other in others] + own)
            title = row.labels.get(spec.panel, "")
            points = found.setdefault(Series(spec.names.get(title, title), name), [])
            points.append((_place(row, spec.x), entry))
    return {each: sorted(points, key=lambda point: point[0]) for each, points in found.items()}


def _order(row: TableRow, names: list[str]) -> list[int]:
    return [names.index(label) if label in names else len(names) for label in row.labels.values()]


def _place(row: TableRow, name: str) -> float:
    try:
        return float(row.labels[name])
    except (KeyError, ValueError):
        raise InputError(f"row {row.id!r} has no number as its label {name!r}, the picture's x") from None


def _line(panel: Axes, points: Points, shade: str, several: bool) -> None:
    """Our points joined by a line, hollow if fitted, and the published values at the same x."""
    ours = [(x, float(e.ours)) for x, e in points if isinstance(e.ours, (int, float))]
    panel.plot([x for x, _ in ours], [y for _, y in ours], color=shade, linewidth=1.6)
    for x, entry in points:
        if isinstance(entry.ours, (int, float)):
            face = "white" if "fitted" in entry.marks else shade
            panel.plot([x], [entry.ours], "o", color=shade, markerfacecolor=face, markersize=4)
        ends = entry.published.ends if entry.published else []
        diamonds(panel, [x] * len(ends), ends, shade if several else "white")


def _scales(panel: Axes, shown: Shown, title: str) -> None:
    spec = shown.spec
    tidy(panel, "both")
    places = sorted({_place(row, spec.x) for row in shown.rows})
    if spec.log:
        panel.set_xscale("log")
    panel.set_xticks(places, [f"{place:g}" for place in places])
    panel.minorticks_off()
    panel.set_ylim(bottom=0)
    panel.set_xlabel(spec.x_heading or spec.x, fontsize=9)
    panel.set_title(title, fontsize=9, loc="left")
