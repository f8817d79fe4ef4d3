"""Bar charts: one panel per column, or grouped or stacked bars per row.

Owns how bars are drawn. `shown` chooses the values.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from repro.reports.figures.paint import FITTED, GREY, OURS, canvas, colour, diamonds, tidy
from repro.reports.figures.shown import Shown
from repro.reports.formats.layout import heading, own_words
from repro.reports.spec.spec import ColumnSpec
from repro.reports.tables.table import Entry, TableRow

HALF = 0.29
"""Half the height of a bar when each row has one; rows are 1 apart."""


def panels(shown: Shown) -> tuple[Figure, list[Artist]]:
    """One panel per column, one bar per row; bars of fitted values are pale."""
    columns, rows = shown.columns, shown.rows
    picture = canvas(1.6 + 2.7 * len(columns), 1.1 + 0.42 * max(len(rows), 2))
    axes = picture.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for i, (panel, column) in enumerate(zip(axes, columns, strict=True)):
        entries = [line[i] for line in shown.lines]
        reach = _reach(entries)
        for y, entry in enumerate(entries):
            shade = FITTED if "fitted" in entry.marks else OURS
            _bar(panel, y, HALF, entry, shade)
            _words(panel, y, entry, own_words(entry, column, shown.hidden), 8)
        _scale(panel, reach, heading(column).rstrip(" ↑↓"), column.better)
    _rows(axes[0], rows)
    keys: list[Artist] = [Patch(color=OURS, label="ours")]
    if any("fitted" in entry.marks for entry in shown.entries):
        keys.append(Patch(color=FITTED, label="ours, fitted"))
    return picture, keys


def grouped(shown: Shown) -> tuple[Figure, list[Artist]]:
    """One panel with a group of bars per row, one bar per column."""
    columns, rows = shown.columns, shown.rows
    picture = canvas(7.2, 1.1 + (0.15 * len(columns) + 0.1) * max(len(rows), 2))
    panel = picture.subplots()
    half, reach = 0.42 / len(columns), _reach(shown.entries)
    for y, line in enumerate(shown.lines):
        for i, (entry, column) in enumerate(zip(line, columns, strict=True)):
            at = y + (2 * i + 1 - len(columns)) * half
            _bar(panel, at, half * 0.9, entry, colour(i))
            _words(panel, at, entry, own_words(entry, column, shown.hidden), 6)
    _scale(panel, reach, shown.heading, columns[0].better)
    if shown.spec.log:
        panel.set_xscale("log")
        panel.set_xlim(min(x for entry in shown.entries for x in _extent(entry) if x > 0) / 2, reach * 3)
    _rows(panel, rows)
    return picture, _keys(columns)


def stacked(shown: Shown) -> tuple[Figure, list[Artist]]:
    """One panel with one bar per row, stacked from the columns; published values are not drawn."""
    columns, rows = shown.columns, shown.rows
    picture = canvas(7.2, 1.1 + 0.42 * max(len(rows), 2))
    panel = picture.subplots()
    reach = max([sum(map(_number, line)) for line in shown.lines], default=1.0) or 1.0
    for y, line in enumerate(shown.lines):
        left = 0.0
        for i, entry in enumerate(line):
            panel.barh(y, _number(entry), left=left, height=2 * HALF, color=colour(i))
            left += _number(entry)
        words = [own_words(entry, column, shown.hidden) for entry, column in zip(line, columns, strict=True)]
        panel.text(left + reach * 0.02, y, " + ".join(words), va="center", fontsize=8)
    _scale(panel, reach, shown.heading, columns[0].better)
    _rows(panel, rows)
    return picture, _keys(columns)


def _bar(panel: Axes, y: float, half: float, entry: Entry, shade: str) -> None:
    """Our value as a bar, with the published value over it."""
    if isinstance(entry.ours, (int, float)):
        panel.barh(y, entry.ours, height=2 * half, color=shade)
    ends = entry.published.ends if entry.published else []
    diamonds(panel, ends, [y] * len(ends))


def _words(panel: Axes, y: float, entry: Entry, words: str, size: float) -> None:
    """Our value as text after its bar; grey text if it is not a number."""
    number = isinstance(entry.ours, (int, float))
    words = "failed" if entry.failed is not None else words
    at, shade = max(_extent(entry), default=0.0), "black" if number else GREY
    panel.annotate(
        words, (at, y), (5, 0), textcoords="offset points", va="center", fontsize=size, color=shade
    )


def _extent(entry: Entry) -> list[float]:
    """Ends of an entry's bar and of its published values."""
    ours = [float(entry.ours)] if isinstance(entry.ours, (int, float)) else []
    return ours + (entry.published.ends if entry.published else [])


def _reach(entries: Sequence[Entry]) -> float:
    return max([x for entry in entries for x in _extent(entry)], default=1.0) or 1.0


def _number(entry: Entry) -> float:
    return float(entry.ours) if isinstance(entry.ours, (int, float)) else 0.0


def _scale(panel: Axes, reach: float, words: str, better: str) -> None:
    tidy(panel, "x")
    panel.set_xlim(0, reach * 1.32)
    panel.set_xlabel(words, fontsize=9)
    panel.tick_params(axis="y", length=0, labelsize=9)
    if better:
        panel.set_title(f"{better} is better", fontsize=7.5, color=GREY, loc="right")


def _rows(panel: Axes, rows: Sequence[TableRow]) -> None:
    panel.set_yticks(range(len(rows)), [row.name for row in rows])
    panel.set_ylim(len(rows) - 0.4, -0.6)


def _keys(columns: Sequence[ColumnSpec]) -> list[Artist]:
    return [Patch(color=colour(i), label=column.heading) for i, column in enumerate(columns)]
