"""Figure of a table: bars, grouped or stacked bars, or lines, with published values marked.

Owns the title, the legend and the source line. The data are the table's.
"""

from __future__ import annotations

from collections.abc import Callable
from textwrap import fill

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from repro.reports.figures.bars import grouped, panels, stacked
from repro.reports.figures.lines import lines
from repro.reports.figures.paint import GREY, diamond_key, exported
from repro.reports.figures.shown import Shown, origin, shown
from repro.reports.tables.table import Table

KINDS: dict[str, Callable[[Shown], tuple[Figure, list[Artist]]]] = {
    "bars": panels,
    "grouped": grouped,
    "stacked": stacked,
    "lines": lines,
}

INCHES_A_KEY = 1.2
LETTERS_AN_INCH = {"title": 11, "below": 18}
"""Characters per inch at the font sizes used here."""


def draw(table: Table, format: str = "png") -> bytes:
    """The figure as PNG of 200 dpi, or as PDF; the same table gives the same bytes.

    Raises:
        ValueError: the table's spec has no `figure` section.
        InputError: an x value of a line figure is not a number.
    """
    spec = table.figure
    if spec is None:
        raise ValueError(f"table {table.experiment!r} has no `figure` section")
    content = shown(table, spec)
    picture, keys = KINDS[spec.kind](content)
    if spec.kind != "stacked" and any(entry.published for entry in content.entries):
        keys.append(diamond_key())
    frame(picture, spec.title or table.title, keys, origin(table, content.entries))
    return exported(picture, format)


def frame(picture: Figure, title: str, keys: list[Artist], below: str) -> None:
    """Add title and legend above, and a source line below."""
    width = picture.get_figwidth()
    picture.legend(
        handles=keys,
        loc="outside upper left",
        ncols=min(len(keys), int(width / INCHES_A_KEY)),
        fontsize=8,
        frameon=False,
        title=fill(title, int(width * LETTERS_AN_INCH["title"])),
        title_fontsize=10.5,
        alignment="left",
    )
    words = fill(below, int(width * LETTERS_AN_INCH["below"]))
    picture.supxlabel(words, fontsize=7, color=GREY, x=0.01, ha="left")
