"""Figure of a table: one of the charts, with its title, legend and source line. The data are the table's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from textwrap import fill

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from repro.reports.figures.charts import Drawing, bars, curves, dots, grouped_bars, lines, stacked_bars
from repro.reports.figures.paint import GREY, default_style, export
from repro.reports.figures.palette import load_palette
from repro.reports.figures.shown import Content, figure_content, figure_title, origin
from repro.reports.tables.table import Table

CHARTS: dict[str, Callable[[Content], Drawing]] = {
    "bars": bars,
    "grouped": grouped_bars,
    "stacked": stacked_bars,
    "dots": dots,
    "lines": lines,
    "curves": curves,
}

LETTERS_PER_INCH = {"title": 12, "key": 14, "below": 18}
"""Characters per inch at the font sizes used here."""

LINE_HEIGHT = {"title": 0.2, "key": 0.18, "below": 0.14}
"""Inches of a line of each."""

KEY_WIDTH = 0.6
"""Inches of a legend entry beside its words."""


@default_style
def draw(table: Table, format: str = "png", bare: bool = False) -> bytes:
    """The figure as PNG of 200 dpi, or as PDF; the same table gives the same bytes.

    A `bare` one has no title and no line below: its caption in a paper says what they would.

    Raises:
        ValueError: the table's spec has no `figure` section.
        InputError: an x value of a line figure is not a number.
    """
    spec = table.figure
    if spec is None:
        raise ValueError(f"table {table.experiment!r} has no `figure` section")
    palette = load_palette(table.experiment.partition("/")[0])
    content = figure_content(table, spec, palette)
    picture, keys = CHARTS[spec.kind](content)
    keys = [] if [key.get_label() for key in keys] == ["ours"] else keys
    title, caption = ("", "") if bare else (figure_title(table, spec.title), origin(table, content))
    frame(picture, title, keys, caption, palette.own_system)
    return export(picture, format)


def frame(picture: Figure, title: str, keys: Sequence[Artist], caption: str, bold_text: str = "") -> None:
    """Add title and legend above and a source line below, for which the figure grows; key `bold` is bold."""
    width = picture.get_figwidth()
    longest = (
        max((len(str(key.get_label())) for key in keys), default=0) / LETTERS_PER_INCH["key"] + KEY_WIDTH
    )
    column_count = min(max(int(width / longest), 1), max(len(keys), 1))
    column_keys = [keys[i::column_count] for i in range(column_count)]  # a legend is filled column by column
    title = "\n".join(fill(line, int(width * LETTERS_PER_INCH["title"])) for line in title.split("\n"))
    legend = picture.legend(
        handles=list(chain.from_iterable(column_keys)),
        loc="outside upper left",
        ncols=column_count,
        fontsize=8,
        frameon=False,
        columnspacing=1.4,
        title=title,
        title_fontsize=10,
        alignment="left",
    )
    for text in legend.get_texts():
        if bold_text and text.get_text() == bold_text:
            text.set_fontweight("bold")
    caption = fill(caption, int(width * LETTERS_PER_INCH["below"]))
    picture.supxlabel(caption, fontsize=7, color=GREY, x=0.01, ha="left")
    row_count = {
        "title": len(title.splitlines()),
        "key": -(-len(keys) // column_count),
        "below": len(caption.splitlines()),
    }
    picture.set_figheight(
        picture.get_figheight()
        + sum(LINE_HEIGHT[part] * line_count for part, line_count in row_count.items())
    )
