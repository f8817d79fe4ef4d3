"""The picture of a table: one panel of bars a column, with the published values marked.

Owns how it is drawn. The data are the table's.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from repro.tables.layout import heading, own_words, shared_marks
from repro.tables.spec import ColumnSpec
from repro.tables.table import MARKS, Entry, Table

OURS, FITTED, PAPER, GREY = "#2f6f9f", "#a9c4d8", "#c8501e", "#6b6b6b"
DRAWN = ("fitted", "off")
"""Marks that the picture shows by colour and place."""


def draw(table: Table) -> bytes:
    """The picture as PNG, 200 dots an inch; the same bytes for the same table.

    Raises:
        ValueError: the table's spec has no `figure` section.
    """
    if table.figure is None:
        raise ValueError(f"table {table.experiment!r} has no `figure` section")
    columns = [column for key in table.figure.columns for column in table.columns if column.key == key]
    rows = [row for row in table.rows if row.id not in table.figure.without]
    shown = [[row.entries[table.columns.index(column)] for row in rows] for column in columns]
    size = (1.6 + 2.7 * len(columns), 1.1 + 0.42 * max(len(rows), 2))
    picture = Figure(figsize=size, dpi=200, layout="constrained")
    FigureCanvasAgg(picture)
    panels = picture.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for panel, column, entries in zip(panels, columns, shown, strict=True):
        _panel(panel, column, entries, (*shared_marks(table), *DRAWN))
    panels[0].set_yticks(range(len(rows)), [row.name for row in rows])
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    _surroundings(picture, table, [entry for entries in shown for entry in entries])
    out = io.BytesIO()
    picture.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _panel(panel: Axes, column: ColumnSpec, entries: Sequence[Entry], hidden: Sequence[str]) -> None:
    reach = max([x for entry in entries for x in _extent(entry)], default=1.0) or 1.0
    for y, entry in enumerate(entries):
        _bar(panel, y, entry, reach, own_words(entry, column, hidden))
        _published(panel, y, entry)
    panel.set_xlim(0, reach * 1.32)
    panel.set_xlabel(heading(column).rstrip(" ↑↓"), fontsize=9)
    if column.better:
        panel.set_title(f"{column.better} is better", fontsize=7.5, color=GREY, loc="right")
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(axis="x", labelsize=8)
    panel.tick_params(axis="y", length=0, labelsize=9)
    panel.grid(axis="x", color="#e4e4e4", linewidth=0.6)
    panel.set_axisbelow(True)


def _extent(entry: Entry) -> list[float]:
    """Where an entry's bar and published values end."""
    ours = [float(entry.ours)] if isinstance(entry.ours, (int, float)) else []
    published = [entry.published.low, entry.published.high] if entry.published else []
    return ours + [value for value in published if value is not None]


def _bar(panel: Axes, y: int, entry: Entry, reach: float, words: str) -> None:
    """Our figure as a bar with its value at the end; only words when there is no number."""
    if isinstance(entry.ours, (int, float)):
        panel.barh(y, entry.ours, height=0.58, color=FITTED if "fitted" in entry.marks else OURS)
        panel.text(max(_extent(entry)) + reach * 0.03, y, words, va="center", fontsize=8)
    else:
        words = "failed" if entry.failed is not None else words
        at = max(_extent(entry), default=0.0) + reach * 0.03
        panel.text(at, y, words, va="center", fontsize=8, color=GREY)


def _published(panel: Axes, y: int, entry: Entry) -> None:
    """The published value as a diamond, a range as two that are joined."""
    ends = (
        [v for v in (entry.published.low, entry.published.high) if v is not None] if entry.published else []
    )
    panel.plot(ends, [y] * len(ends), color=PAPER, linewidth=2.2, solid_capstyle="butt", zorder=3)
    panel.plot(ends, [y] * len(ends), "D", color=PAPER, markersize=4.5, markeredgecolor="white", zorder=4)


def _surroundings(picture: Figure, table: Table, shown: Sequence[Entry]) -> None:
    """Title, and what the colours and signs mean, and where the figures come from."""
    title = table.figure.title if table.figure else ""
    picture.suptitle(title or table.title, fontsize=10.5, x=0.01, ha="left")
    keys: list[Artist] = [Patch(color=OURS, label="ours")]
    if any("fitted" in entry.marks for entry in shown):
        keys.append(Patch(color=FITTED, label="ours, fitted"))
    if any(entry.published for entry in shown):
        keys.append(Line2D([], [], color=PAPER, marker="D", markersize=4.5, label="published"))
    picture.legend(handles=keys, loc="outside upper right", ncols=len(keys), fontsize=8, frameon=False)
    picture.supxlabel("; ".join(_origin(table, shown)), fontsize=7, color=GREY, x=0.01, ha="left")


def _origin(table: Table, shown: Sequence[Entry]) -> list[str]:
    shared = shared_marks(table)
    signs = {mark for entry in shown for mark in entry.marks} - {*shared, *DRAWN}
    words = {mark: MARKS[mark][1].partition(" (")[0] for mark in MARKS}
    reservations = [words[m] for m in shared] + [f"{MARKS[m][0]} {words[m]}" for m in MARKS if m in signs]
    return [*reservations, table.date or "no records", f"commit {', '.join(table.commits) or 'none'}"]
