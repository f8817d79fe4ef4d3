"""Dot plots: a line per row, a dot per column, for tables of many rows.

Owns how dots are drawn. `shown` chooses the values, `colouring` their colours; values are not written out.
"""

from __future__ import annotations

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from repro.reports.figures.bars import WIDTH
from repro.reports.figures.colouring import column_colours
from repro.reports.figures.paint import GREY, GRID, canvas, pale, tidy
from repro.reports.figures.shown import Shown, ends_of
from repro.reports.figures.values import axis
from repro.reports.tables.table import Entry

ROW = 0.16
"""Inches between rows."""

MARGIN = 1.06
"""By how much the axis goes beyond the last dots."""

BELOW = 0.26
"""How far published values stand below ours; rows are 1 apart."""


def dots(shown: Shown) -> tuple[Figure, list[Artist]]:
    """One panel with a line per row and a dot per column; published values are diamonds below the dots."""
    rows = shown.rows
    picture = canvas(WIDTH, 1.2 + ROW * max(len(rows), 4))
    panel = picture.subplots()
    shades = column_colours(shown)
    for y, line in enumerate(shown.lines):
        panel.axhline(y, color=GRID, linewidth=0.6, zorder=0)
        for entry, shade in zip(line, shades, strict=True):
            _dot(panel, y, entry, shade)
    tidy(panel, "x")
    log, numbers = shown.spec.log, [number for entry in shown.entries for number in _numbers(entry)] or [1.0]
    low, high = min(n for n in numbers if n > 0 or not log), max(numbers)
    axis(panel, *((low / MARGIN, high * MARGIN) if log else (min(low, 0.0), high * MARGIN)), log)
    panel.set_xlabel(shown.heading, fontsize=9)
    if better := shown.columns[0].better:
        panel.set_title(f"{better} is better", fontsize=7.5, color=GREY, loc="right")
    panel.set_yticks(range(len(rows)), [row.name for row in rows])
    panel.tick_params(axis="y", length=0, labelsize=7.5)
    panel.set_ylim(len(rows) - 0.4, -0.6)
    return picture, _legend(shown, shades)


def _numbers(entry: Entry) -> list[float]:
    """All that the axis must show of an entry."""
    ours = [float(entry.ours)] if isinstance(entry.ours, (int, float)) else []
    return [*ours, *(ends_of(entry) or ()), *(entry.published.ends if entry.published else [])]


def _dot(panel: Axes, y: float, entry: Entry, shade: str) -> None:
    """Our value with its interval, hollow if fitted; the published one or its range in the same colour."""
    if ends := ends_of(entry):
        panel.hlines(y, *ends, color=shade, linewidth=1.0)
    if isinstance(entry.ours, (int, float)):
        face = "white" if "fitted" in entry.marks else shade
        panel.plot([entry.ours], [y], "o", color=shade, markerfacecolor=face, markersize=4, zorder=3)
    published = entry.published.ends if entry.published else []
    if published:
        places = [y + BELOW] * len(published)
        panel.plot(published, places, "-D", color=shade, markerfacecolor=pale(shade), markersize=2.6, lw=0.8)


def _legend(shown: Shown, shades: list[str]) -> list[Artist]:
    def key(shade: str, words: str, marker: str = "o", face: str = "", size: float = 5) -> Artist:
        return Line2D(
            [],
            [],
            color=shade,
            marker=marker,
            lw=0,
            markersize=size,
            label=words,
            markerfacecolor=face or shade,
        )

    keys = [key(shade, column.heading) for column, shade in zip(shown.columns, shades, strict=True)]
    if any("fitted" in entry.marks for entry in shown.entries):
        keys.append(key(GREY, "hollow: fitted", face="white"))
    if any(entry.published for entry in shown.entries):
        keys.append(key(GREY, "published", marker="D", face=pale(GREY), size=3.5))
    return keys
