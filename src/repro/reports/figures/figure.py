"""Figure of a table: bars, grouped or stacked bars, dots, lines, or curves, with published values marked.

Owns the title, the legend and the source line. The data are the table's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from textwrap import fill

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from repro.reports.figures.bars import grouped, panels, stacked
from repro.reports.figures.curves import curves
from repro.reports.figures.dots import dots
from repro.reports.figures.lines import lines
from repro.reports.figures.paint import GREY, drawn_alike, exported, width_of
from repro.reports.figures.palette import load_palette
from repro.reports.figures.shown import Shown, figure_title, origin, shown
from repro.reports.tables.table import Table

KINDS: dict[str, Callable[[Shown], tuple[Figure, list[Artist]]]] = {
    "bars": panels,
    "grouped": grouped,
    "stacked": stacked,
    "dots": dots,
    "lines": lines,
    "curves": curves,
}

KEY = 42.0
"""Points of a legend entry beside its words, at font size 8."""

LETTERS_AN_INCH = {"title": 12, "below": 18}
"""Characters per inch at the font sizes used here."""


@drawn_alike
def draw(table: Table, format: str = "png") -> bytes:
    """The figure as PNG of 200 dpi, or as PDF; the same table gives the same bytes.

    Raises:
        ValueError: the table's spec has no `figure` section.
        InputError: an x value of a line figure is not a number.
    """
    spec = table.figure
    if spec is None:
        raise ValueError(f"table {table.experiment!r} has no `figure` section")
    palette = load_palette(table.experiment.partition("/")[0])
    content = shown(table, spec, palette)
    picture, keys = KINDS[spec.kind](content)
    frame(picture, figure_title(table, spec.title), keys, origin(table, content), palette.own)
    return exported(picture, format)


def frame(picture: Figure, title: str, keys: Sequence[Artist], below: str, own: str = "") -> None:
    """Add title and legend above, and a source line below; the entry named `own` is bold."""
    width = picture.get_figwidth()
    across = _abreast([str(key.get_label()) for key in keys], 72 * width)
    by_line = [keys[i::across] for i in range(across)]  # a legend is filled column by column
    legend = picture.legend(
        handles=list(chain.from_iterable(by_line)),
        loc="outside upper left",
        ncols=across,
        fontsize=8,
        frameon=False,
        columnspacing=1.4,
        title="\n".join(fill(line, int(width * LETTERS_AN_INCH["title"])) for line in title.split("\n")),
        title_fontsize=10,
        alignment="left",
    )
    for text in legend.get_texts():
        if own and text.get_text() == own:
            text.set_fontweight("bold")
    words = fill(below, int(width * LETTERS_AN_INCH["below"]))
    picture.supxlabel(words, fontsize=7, color=GREY, x=0.01, ha="left")


def _abreast(names: Sequence[str], room: float) -> int:
    """How many legend entries stand side by side within so many points; at least one."""
    for count in range(len(names), 1, -1):
        columns = [names[i::count] for i in range(count)]
        if sum(KEY + max(width_of(name, 8) for name in column) for column in columns) <= room:
            return count
    return 1
