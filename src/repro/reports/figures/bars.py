"""Bar charts: one panel per column, or grouped or stacked bars per row.

Owns how bars are drawn. `shown` chooses the values, `values` places them, `colouring` their colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from repro.reports.figures.colouring import bar_colours, column_colours, row_systems
from repro.reports.figures.paint import GREY, OURS, across_key, bars_across, canvas, pale, tidy, width_of
from repro.reports.figures.shown import Shown, ends_of, words_of
from repro.reports.figures.values import Value, fit
from repro.reports.formats.layout import heading
from repro.reports.spec.spec import ColumnSpec
from repro.reports.tables.table import Entry

HALF = 0.3
"""Half the height of a bar when each row has one; rows are 1 apart."""

ROW, GROUPED_ROW, BETWEEN = 0.29, 0.145, 0.11
"""Inches of a row with one bar, of a bar in a group, and between groups."""

WIDTH = 7.2
"""Inches of a figure with one panel: the text of a page."""

PANEL, ABREAST = 2.1, 3
"""Inches of a panel of one column, and the most panels side by side."""

OVERHANG = {HALF: 1.3}
"""How much longer a published value's line is than its bar is high, by half that height; else `TIGHT`."""

TIGHT = 1.1
"""The same for bars of a group, which have little between them."""


def panels(shown: Shown) -> tuple[Figure, list[Artist]]:
    """One panel per column, one bar per row; bars of fitted values are pale."""
    columns, rows = shown.columns, shown.rows
    across, down = _arranged(len(columns))
    names = max((width_of(row.name, 9) for row in rows), default=0.0) / 72
    height = 0.75 + down * (0.6 + ROW * max(len(rows), 2))
    picture = canvas(0.4 + names + max(PANEL * across, 2 * PANEL - 0.6), height)
    axes = list(picture.subplots(down, across, sharey=True, squeeze=False).flat)
    drawn = []
    for i, (panel, column) in enumerate(zip(axes, columns, strict=False)):
        shades = bar_colours(shown, column)
        values = [
            _bar(panel, y, HALF, line[i], column, shade, 8)
            for y, (line, shade) in enumerate(zip(shown.lines, shades, strict=True))
        ]
        _axis(panel, heading(column).rstrip(" ↑↓"), column.better)
        drawn.append((panel, values))
    for panel in axes[len(columns) :]:
        panel.set_visible(False)
    _rows(axes[0], shown)
    fit(picture, drawn)
    shades = [shade for column in columns for shade in bar_colours(shown, column)]
    return picture, _legend(shown, [Patch(color=OURS, label="ours")] if set(shades) == {OURS} else [])


def grouped(shown: Shown) -> tuple[Figure, list[Artist]]:
    """One panel with a group of bars per row, one bar per column."""
    columns, rows = shown.columns, shown.rows
    picture = canvas(WIDTH, 1.1 + (GROUPED_ROW * len(columns) + BETWEEN) * max(len(rows), 2))
    panel = picture.subplots()
    shades, half = column_colours(shown), 0.42 / len(columns)
    values, levels = [], _levels(panel, shown)
    for y, line in enumerate(shown.lines):
        for i, (entry, column) in enumerate(zip(line, columns, strict=True)):
            at = y + (2 * i + 1 - len(columns)) * half
            value = _bar(panel, at, half * 0.88, entry, column, shades[i], 6)
            values.append(replace(value, published=(*value.published, *levels.get(y, ()))))
    _axis(panel, shown.heading, columns[0].better)
    _rows(panel, shown)
    fit(picture, [(panel, values)], shown.spec.log)
    return picture, _legend(shown, _keys(columns, shades))


def stacked(shown: Shown) -> tuple[Figure, list[Artist]]:
    """One panel with one bar per row, stacked from the columns; published values are not drawn."""
    columns = shown.columns
    picture = canvas(WIDTH, 1.1 + ROW * max(len(shown.rows), 2))
    panel = picture.subplots()
    values, shades = [], column_colours(shown)
    for y, line in enumerate(shown.lines):
        left = 0.0
        for entry, shade in zip(line, shades, strict=True):
            panel.barh(y, _number(entry), left=left, height=2 * HALF, color=shade)
            left += _number(entry)
        words = " + ".join(words_of(entry, column) for entry, column in zip(line, columns, strict=True))
        values.append(Value(y, left, words, 8, shades[-1]))
    _axis(panel, shown.heading, columns[0].better)
    _rows(panel, shown)
    fit(picture, [(panel, values)])
    return picture, _keys(columns, shades)


def _arranged(count: int) -> tuple[int, int]:
    """Panels side by side, and rows of panels."""
    across = 2 if count == 4 else min(count, ABREAST)
    return across, ceil(count / across)


def _bar(
    panel: Axes, y: float, half: float, entry: Entry, column: ColumnSpec, shade: str, size: float
) -> Value:
    """Draw our value with its error bar and the published value across it; the value to be written beside."""
    number = isinstance(entry.ours, (int, float))
    ends = ends_of(entry)
    if number:
        own = pale(shade) if "fitted" in entry.marks else shade
        panel.barh(y, _number(entry), height=2 * half, color=own)
    if ends:
        panel.hlines(y, *ends, color="black", linewidth=0.8, zorder=3.5)
        panel.vlines(ends, y - half / 2, y + half / 2, color="black", linewidth=0.8, zorder=3.5)
    published = tuple(entry.published.ends) if entry.published else ()
    if published:
        bars_across(panel, published, y, half * OVERHANG.get(half, TIGHT))
    shade = (pale(shade) if "fitted" in entry.marks else shade) if number else ""
    return Value(y, _number(entry), words_of(entry, column), size, shade, ends, published)


def _levels(panel: Axes, shown: Shown) -> dict[int, tuple[float]]:
    """A dashed line through each group, such as what chance reaches; their places by group."""
    found: dict[int, tuple[float]] = {}
    for y, entry in enumerate(shown.levels):
        if isinstance(entry.ours, (int, float)):
            panel.vlines(
                entry.ours, y - 0.48, y + 0.48, color="black", linewidth=0.9, linestyle="--", zorder=4
            )
            found[y] = (float(entry.ours),)
    return found


def _number(entry: Entry) -> float:
    return float(entry.ours) if isinstance(entry.ours, (int, float)) else 0.0


def _axis(panel: Axes, words: str, better: str) -> None:
    tidy(panel, "x")
    panel.set_xlabel(words, fontsize=9)
    panel.tick_params(axis="y", length=0, labelsize=9)
    if better:
        panel.set_title(f"{better} is better", fontsize=7.5, color=GREY, loc="right")


def _rows(panel: Axes, shown: Shown) -> None:
    """The rows' names from the top, that of the paper's own system in bold."""
    rows, systems = shown.rows, row_systems(shown)
    panel.set_yticks(range(len(rows)), [row.name for row in rows])
    for name, system in zip(panel.get_yticklabels(), systems, strict=True):
        if len(set(systems)) > 1 and system and system == shown.palette.own:
            name.set_fontweight("bold")
    panel.set_ylim(len(rows) - 0.4, -0.6)


def _legend(shown: Shown, keys: list[Artist]) -> list[Artist]:
    """These entries, and those of pale bars, of dashed lines and of published values, where there are any."""
    if any("fitted" in entry.marks for entry in shown.entries):
        keys.append(Patch(color=pale(GREY), label="pale: fitted"))
    if shown.levels:
        keys.append(Line2D([], [], color="black", linewidth=0.9, linestyle="--", label=shown.level))
    if any(entry.published for entry in shown.entries):
        keys.append(across_key())
    return keys


def _keys(columns: Sequence[ColumnSpec], shades: Sequence[str]) -> list[Artist]:
    return [Patch(color=shade, label=column.heading) for column, shade in zip(columns, shades, strict=True)]
