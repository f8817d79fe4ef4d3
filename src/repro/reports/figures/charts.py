"""Charts of a table's values: bars, stacked bars and dots of rows, lines over a label, curves over a column.

Owns how values, intervals and published values are drawn. `shown` chooses them, `palette` their colours,
`figure` adds the title and the legend.
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
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator

from repro.core.errors import InputError
from repro.reports.figures.paint import (
    GREY,
    GRID_COLOUR,
    OUR_COLOUR,
    PAPER_COLOUR,
    SERIES_COLOURS,
    canvas,
    pale,
    tidy,
)
from repro.reports.figures.palette import neutral
from repro.reports.figures.shown import Content, ends_of, value_text
from repro.reports.formats.layout import heading
from repro.reports.reference.reference import find, load_cells
from repro.reports.spec.spec import ColumnSpec
from repro.reports.tables.table import Entry, TableRow, is_number

Drawing = tuple[Figure, list[Artist]]
"""A figure and the entries of its legend."""

Style = Literal["-", "--", ":", "-."]
STYLES: tuple[Style, ...] = ("-", "--", ":", "-.")
"""Line styles of series that share a colour."""

MARKERS = ("s", "^", "v", "P", "X")
"""Shapes of rows that are no points of a curve."""

PAGE_WIDTH = 7.2
"""Inches of a figure with one panel: the text of a page."""

ROW_HEIGHT, GROUPED_HEIGHT, DOTTED_HEIGHT, GROUP_GAP = 0.29, 0.15, 0.16, 0.11
"""Inches of a row with one bar, of a bar in a group, of a row of dots, and between groups."""

AXIS_HEIGHT = 0.75
"""Inches of an axis with its ticks and its label."""

VISIBLE_SHARE = 1 / 100
"""Where a bar would be a smaller part of the longest one, dots stand on a logarithmic axis."""

MOST_TICKS = 9
"""Values of x that are all written at the axis; of more the axis has ticks of its own."""


def bars(content: Content) -> Drawing:
    """One panel per column, one bar per row; pale bars are of fitted values."""
    count = len(content.columns)
    columns = 2 if count == 4 else min(count, 3)
    name_width = max((len(row.name) for row in content.rows), default=0) / 14
    width = name_width + max(2.2 * columns, 4.0)
    picture, axes = _panels(count, columns, width, AXIS_HEIGHT + ROW_HEIGHT * len(content.rows), sharey=True)
    logarithmic, colours = False, set[str]()
    for i, (panel, column) in enumerate(zip(axes, content.columns, strict=True)):
        entries = [line[i] for line in content.lines]
        log = _needs_log(entries)
        shades = content.palette.bar_colours(content.rows, column)
        for y, (entry, shade) in enumerate(zip(entries, shades, strict=True)):
            _value(panel, y, 0.6, entry, shade, log)
            _write(panel, y, value_text(entry, column), 8)
        _value_axis(panel, heading(column), column.better, log)
        logarithmic |= log
        colours |= {*shades}
        panel.tick_params(axis="y", length=0)
    _row_axis(axes[0], content)
    keys: list[Artist] = [Patch(color=OUR_COLOUR, label="ours")] if colours == {OUR_COLOUR} else []
    return picture, [*keys, *_common_keys(content, logarithmic)]


def grouped_bars(content: Content) -> Drawing:
    """One panel with a group of bars per row, one bar per column; dots on a logarithmic axis."""
    columns, count = content.columns, len(content.columns)
    picture, (panel,) = _panels(
        1, 1, PAGE_WIDTH, AXIS_HEIGHT + (GROUPED_HEIGHT * count + GROUP_GAP) * len(content.rows)
    )
    log = content.spec.log or _needs_log(content.entries)
    shades, height = content.palette.column_colours(columns), 0.84 / count
    for y, line in enumerate(content.lines):
        for i, (entry, column) in enumerate(zip(line, columns, strict=True)):
            middle = y + (i - (count - 1) / 2) * height
            _value(panel, middle, height * 0.88, entry, shades[i], log)
            _write(panel, middle, value_text(entry, column), 6)
            if log:
                panel.axhline(middle, color=GRID_COLOUR, linewidth=0.6, zorder=0)
    for y, entry in enumerate(content.levels):
        if (number := entry.number) is not None:
            panel.vlines(number, y - 0.48, y + 0.48, color="black", linewidth=0.9, linestyle="--", zorder=4)
    _value_axis(panel, content.heading, columns[0].better, log)
    _row_axis(panel, content)
    return picture, [*_column_keys(columns, shades, log), *_common_keys(content, log)]


def stacked_bars(content: Content) -> Drawing:
    """One panel with one bar per row, stacked from the columns; published values are not drawn."""
    columns = content.columns
    picture, (panel,) = _panels(1, 1, PAGE_WIDTH, AXIS_HEIGHT + ROW_HEIGHT * len(content.rows))
    shades = content.palette.column_colours(columns)
    for y, line in enumerate(content.lines):
        start = 0.0
        for entry, shade in zip(line, shades, strict=True):
            panel.barh(y, entry.number or 0.0, 0.6, left=start, color=shade)
            start += entry.number or 0.0
        text = " + ".join(value_text(entry, column) for entry, column in zip(line, columns, strict=True))
        _write(panel, y, text, 8)
    _value_axis(panel, content.heading, columns[0].better, log=False)
    _row_axis(panel, content)
    return picture, _column_keys(columns, shades, log=False)


def dots(content: Content) -> Drawing:
    """One panel with a line per row and a dot per column, without the numbers, for tables of many rows."""
    picture, (panel,) = _panels(1, 1, PAGE_WIDTH, AXIS_HEIGHT + DOTTED_HEIGHT * max(len(content.rows), 4))
    shades = content.palette.column_colours(content.columns)
    for y, line in enumerate(content.lines):
        for entry, shade in zip(line, shades, strict=True):
            _value(panel, y, 0.0, entry, shade, log=True, outline=shade)
    _value_axis(panel, content.heading, content.columns[0].better, content.spec.log)
    _row_axis(panel, content, font_size=7.5)
    return picture, [
        *_column_keys(content.columns, shades, log=True),
        *_common_keys(content, is_dotted=True, outline=GREY),
    ]


@dataclass(frozen=True)
class Series:
    """A line: its panel, its name, and its system with the rest of the name if it has one."""

    panel: str
    name: str
    system: str = ""
    rest: str = ""


Points = list[tuple[float, Entry]]
Look = tuple[str, Style]
"""Colour and line style."""


def lines(content: Content) -> Drawing:
    """One panel per value of the label `panel`, one line per column and per value of the remaining labels.

    Raises:
        InputError: the label of the x axis is not a number.
    """
    lines = series(content)
    looks = _looks(list(lines), content)
    titles = list(dict.fromkeys(line.panel for line in lines)) or [""]
    column_count = min(len(titles), 3)
    picture, axes = _panels(len(titles), column_count, 0.8 + max(2.5 * column_count, 3.4), 2.7)
    ticks = sorted({_label_number(row, content.spec.x) for row in content.rows})
    for panel, title in zip(axes, titles, strict=True):
        for line, points in lines.items():
            if line.panel == title:
                _curve(panel, points, *looks[line.name])
        _level(panel, content, title)
        if content.spec.log:
            panel.set_xscale("log")
        if len(ticks) <= MOST_TICKS:
            panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        panel.minorticks_off()
        _line_axes(panel, content, title)
    for panel in axes[::column_count]:
        panel.set_ylabel(_with_better(content.heading, content.columns[0].better), fontsize=9)
    return picture, [
        *_line_keys(list(lines), looks, content),
        *_common_keys(content, is_dotted=True, outline=GREY),
    ]


def curves(content: Content) -> Drawing:
    """One panel per value of the label `panel`; rows named by a number are joined, others are marked."""
    spec, palette = content.spec, content.palette
    titles = list(dict.fromkeys(row.labels[spec.panel] for row in content.rows)) or [""]
    column_count = min(len(titles), 2)
    picture, axes = _panels(len(titles), column_count, 0.6 + 4.2 * column_count, 3.0)
    shades = palette.column_colours(content.columns)
    names = [_other_labels(row, content) for row in content.rows if not row.is_point(spec.panel)]
    shapes = {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(dict.fromkeys(names))}
    for panel, title in zip(axes, titles, strict=True):
        rows = [
            (row, entries, x)
            for row, entries, x_entry in zip(content.rows, content.lines, content.x_entries, strict=True)
            if row.labels[spec.panel] == title and (x := x_entry.number) is not None
        ]
        for i, shade in enumerate(shades):
            points = [(x, entries[i]) for row, entries, x in rows if row.is_point(spec.panel)]
            _curve(panel, sorted(points, key=lambda point: point[0]), shade)
            for row, entries, x in rows:
                if not row.is_point(spec.panel):
                    _curve(panel, [(x, entries[i])], shade, shape=shapes[_other_labels(row, content)])
        for (_, positions), style in zip(spec.uprights.items(), STYLES[:0:-1], strict=False):
            for position in positions:
                panel.axvline(_published_x(position), color=GREY, linestyle=style, linewidth=0.8, zorder=0)
        if any(column.baseline for column in content.columns):
            panel.axhline(1, color="black", linewidth=0.8, linestyle="--")
        _line_axes(panel, content, content.display(spec.panel, title) if spec.panel else "")
    for panel in axes[::column_count]:
        panel.set_ylabel(content.heading, fontsize=9)
    keys = [_key(column.heading, c, "o", line="-") for column, c in zip(content.columns, shades, strict=True)]
    keys += [_key(name, GREY, shape) for name, shape in shapes.items()]
    keys += [_key(name, GREY, "", line=s) for name, s in zip(spec.uprights, STYLES[:0:-1], strict=False)]
    return picture, keys


def series(content: Content) -> dict[Series, Points]:
    """The lines, those in `names` first in that order, each with its entries sorted by x."""
    spec, palette, lines = content.spec, content.palette, dict[Series, Points]()
    column_systems = palette.column_systems(content.columns)
    rank_by_name = {name: rank for rank, name in enumerate(spec.names)}

    def ranks(pair: tuple[TableRow, Sequence[Entry]]) -> list[int]:
        return [rank_by_name.get(label, len(rank_by_name)) for label in pair[0].labels.values()]

    for row, entries in sorted(zip(content.rows, content.lines, strict=True), key=ranks):
        texts = {n: content.display(n, v) for n, v in row.labels.items() if n not in (spec.x, spec.panel)}
        systems = {name: palette.systems_of({name: row.labels[name]}) for name in texts}
        row_system = next((names[0] for names in systems.values() if names), "")
        for column, entry, column_system in zip(content.columns, entries, column_systems, strict=True):
            headings = [column.heading] if len(content.columns) > 1 else []
            other_texts = [text for name, text in texts.items() if column_system or not systems[name]]
            other_texts += [] if column_system else headings
            title = content.display(spec.panel, row.labels[spec.panel]) if spec.panel else ""
            name = ", ".join([*texts.values(), *headings])
            line = Series(title, name, column_system or row_system, ", ".join(other_texts))
            lines.setdefault(line, []).append((_label_number(row, spec.x), entry))
    return {line: sorted(points, key=lambda point: point[0]) for line, points in lines.items()}


def _panels(
    panel_count: int, column_count: int, width: float, height: float, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, each with its axes `height` inches high."""
    row_count = ceil(panel_count / column_count)
    picture = canvas(width, height * row_count)
    axes = list(picture.subplots(row_count, column_count, sharey=sharey, squeeze=False).flat)
    for panel in axes[panel_count:]:
        panel.set_visible(False)
    return picture, axes[:panel_count]


def _needs_log(entries: Sequence[Entry]) -> bool:
    """Whether bars of all values would be too short to be seen beside the longest one."""
    numbers = [number for entry in entries if (number := entry.number) is not None]
    return bool(numbers) and 0 < min(numbers) < VISIBLE_SHARE * max(numbers)


def _value(
    panel: Axes, y: float, height: float, entry: Entry, shade: str, log: bool, outline: str = PAPER_COLOUR
) -> None:
    """Our value as a bar with its interval, pale if fitted, or as a dot; the published one over it."""
    if log:
        _dot(panel, y, entry, shade)
    else:
        if (number := entry.number) is not None:
            panel.barh(y, number, height, color=pale(shade) if "fitted" in entry.marks else shade)
        if ends := ends_of(entry):
            _interval(panel, ends, y, "black", "x")
    if entry.published:
        _diamonds(panel, entry.published.ends, [y] * len(entry.published.ends), outline)


def _dot(panel: Axes, y: float, entry: Entry, shade: str) -> None:
    """Our value with its interval, hollow if fitted."""
    if ends := ends_of(entry):
        _interval(panel, ends, y, shade, "x")
    if (number := entry.number) is not None:
        face = "white" if "fitted" in entry.marks else shade
        panel.plot(number, y, "o", color=shade, markerfacecolor=face, markersize=4, zorder=3)


def _curve(panel: Axes, points: Points, shade: str, style: Style = "-", shape: str = "o") -> None:
    """Our points joined by a line, hollow if fitted, with intervals; published values as hollow diamonds."""
    figures = [(x, number, entry) for x, entry in points if (number := entry.number) is not None]
    marker_size = 5.5 if shape != "o" else 4 if len(figures) <= 2 * MOST_TICKS else 2.5
    if len(figures) > 1:
        panel.plot([x for x, *_ in figures], [y for _, y, _ in figures], style, color=shade, linewidth=1.6)
    for x, number, entry in figures:
        face = "white" if "fitted" in entry.marks else shade
        panel.plot(x, number, shape, color=shade, markerfacecolor=face, markersize=marker_size)
        if ends := ends_of(entry):
            _interval(panel, ends, x, shade, "y")
    for x, entry in points:
        if entry.published:
            _diamonds(panel, [x] * len(entry.published.ends), entry.published.ends, shade)


def _interval(panel: Axes, ends: tuple[float, float], level: float, shade: str, axis: str) -> None:
    """An error bar between two ends, which need not enclose our value, along x or y."""
    middle, radius = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2
    if axis == "x":
        panel.errorbar(middle, level, xerr=radius, fmt="none", ecolor=shade, elinewidth=0.9, capsize=1.8)
    else:
        panel.errorbar(level, middle, yerr=radius, fmt="none", ecolor=shade, elinewidth=0.9, capsize=1.8)


def _diamonds(panel: Axes, x: Sequence[float], y: Sequence[float], shade: str) -> None:
    """A published value as a hollow diamond, or a range as two that are joined."""
    (line,) = panel.plot(x, y, "-D", color=shade, markerfacecolor="none", markersize=5, lw=1, zorder=4)
    line.set_clip_on(False)


def _write(panel: Axes, y: float, text: str, font_size: float) -> None:
    """Our value in words right of the panel, where neither intervals nor published values stand."""
    point = (1, y)
    panel.annotate(
        text, point, (8, 0), panel.get_yaxis_transform(), "offset points", va="center", fontsize=font_size
    )


def _value_axis(panel: Axes, label: str, better: str, log: bool) -> None:
    """The axis of rows' values; zero is marked if there are negative ones."""
    tidy(panel, "x")
    if log:
        panel.set_xscale("log")
        low, high = panel.dataLim.intervalx
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.minorticks_off()
    else:
        low, high = min(panel.dataLim.x0, 0.0), max(panel.dataLim.x1, 0.0)
        panel.set_xlim(low, high if high > low else 1.0)
        if low < 0:
            panel.axvline(0, color="black", linewidth=0.8)
            panel.spines["left"].set_visible(False)
    panel.set_xlabel(_with_better(label, better), fontsize=9)


def _row_axis(panel: Axes, content: Content, font_size: float = 9) -> None:
    """The rows' names from the top, that of the paper's own system in bold."""
    systems = content.palette.row_systems(content.rows)
    panel.set_yticks(range(len(content.rows)), [row.name for row in content.rows])
    panel.tick_params(axis="y", length=0, labelsize=font_size)
    for tick_label, system in zip(panel.get_yticklabels(), systems, strict=True):
        if len(set(systems)) > 1 and system and system == content.palette.own_system:
            tick_label.set_fontweight("bold")
    if font_size < 9:
        panel.grid(axis="y", color=GRID_COLOUR, linewidth=0.6)
    panel.set_ylim(len(content.rows) - 0.4, -0.6)


def _with_better(label: str, better: str) -> str:
    label = label.rstrip(" ↑↓")
    return f"{label}\n{better} is better" if better else label


def _line_axes(panel: Axes, content: Content, title: str) -> None:
    tidy(panel, "both")
    if panel.dataLim.y0 >= 0:
        panel.set_ylim(0, panel.dataLim.y1 * 1.06 or 1.0)
    panel.set_xlabel(content.spec.x_heading or content.spec.x, fontsize=9)
    panel.set_title(title, fontsize=9, loc="left")


def _level(panel: Axes, content: Content, title: str) -> None:
    """A dashed line of what stands beside all series, such as chance."""
    name, points = content.spec.panel, list[tuple[float, float]]()
    for row, entry in zip(content.rows, content.levels, strict=bool(content.levels)):
        number = entry.number
        if number is not None and (not name or content.display(name, row.labels[name]) == title):
            points.append((_label_number(row, content.spec.x), number))
    panel.plot([x for x, _ in sorted(points)], [y for _, y in sorted(points)], "--", color="black", lw=0.9)


def _label_number(row: TableRow, name: str) -> float:
    try:
        return float(row.labels[name])
    except (KeyError, ValueError):
        raise InputError(f"row {row.id!r} has no number as its label {name!r}, the picture's x") from None


def _published_x(position: str) -> float:
    """A place on the x axis: a number, or the id of a published value."""
    value = float(position) if is_number(position) else find(load_cells(), position).value_low
    if value is None:
        raise InputError(f"the published value {position!r} has no lower end, at which a line would stand")
    return value


def _other_labels(row: TableRow, content: Content) -> str:
    return ", ".join(content.display(n, v) for n, v in row.labels.items() if n != content.spec.panel)


def _looks(lines: Sequence[Series], content: Content) -> dict[str, Look]:
    """Colour and style of each line by its name: systems by colour and the rest by style, if both differ."""
    names = {line.name: line for line in lines}
    if _by_system(lines):
        shades = content.palette.colours([line.system for line in lines])
        labels = list(dict.fromkeys(line.rest for line in lines))
        return {n: (shades[e.system], STYLES[labels.index(e.rest) % len(STYLES)]) for n, e in names.items()}
    indexed = enumerate(zip(names, neutral([{"name": name} for name in names]), strict=True))
    return {name: (shade, STYLES[i // len(SERIES_COLOURS) % len(STYLES)]) for i, (name, shade) in indexed}


def _by_system(lines: Sequence[Series]) -> bool:
    return all(line.system for line in lines) and len({line.system for line in lines}) > 1


def _line_keys(lines: Sequence[Series], looks: Mapping[str, Look], content: Content) -> list[Artist]:
    """An entry per line; one per system and one per style if lines differ in both."""
    labels = list(dict.fromkeys(line.rest for line in lines))
    if not _by_system(lines) or len(labels) == 1:
        return [_key(name or "ours", shade, "o", line=style) for name, (shade, style) in looks.items()]
    shades = content.palette.colours([line.system for line in lines])
    keys = [_key(system, shade, "o", line="-") for system, shade in shades.items()]
    return keys + [_key(label, GREY, "", line=STYLES[i % len(STYLES)]) for i, label in enumerate(labels)]


def _column_keys(columns: Sequence[ColumnSpec], shades: Sequence[str], log: bool) -> list[Artist]:
    pairs = zip(columns, shades, strict=True)
    if log:
        return [_key(column.heading, shade, "o") for column, shade in pairs]
    return [Patch(color=shade, label=column.heading) for column, shade in pairs]


def _common_keys(content: Content, is_dotted: bool, outline: str = PAPER_COLOUR) -> list[Artist]:
    """Entries of fitted values, of dashed lines and of published values, where there are any."""
    keys: list[Artist] = []
    if any("fitted" in entry.marks for entry in content.entries):
        hollow_key = _key("hollow: fitted", GREY, "o", face_shade="white")
        keys.append(hollow_key if is_dotted else Patch(color=pale(GREY), label="pale: fitted"))
    if content.levels:
        keys.append(_key(content.level, "black", "", line="--"))
    if any(entry.published for entry in content.entries):
        keys.append(_key("published", outline, "D", face_shade="none"))
    return keys


def _key(label: str, shade: str, marker: str, face_shade: str = "", line: Style | Literal[""] = "") -> Artist:
    key = Line2D([], [], color=shade, linestyle=line, marker=marker, markersize=4.5, label=label)
    key.set_markerfacecolor(face_shade or shade)
    return key
