"""Colours and drawing helpers shared by all figures, and their export to PNG and PDF.

Owns the look. Must not know tables or what is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

OURS, FITTED, PAPER, GREY, GRID = "#2f6f9f", "#a9c4d8", "#c8501e", "#6b6b6b", "#e4e4e4"
SERIES = (OURS, "#d9a441", "#5b8c5a", "#8a5a9f", "#46a6a6", "#b0506a", "#8c8c8c", "#7a5c3e")
"""Colours of series, the default one first; they can be told apart in greyscale, too."""


def canvas(width: float, height: float) -> Figure:
    """An empty figure of `width` x `height` inches at 200 dpi."""
    picture = Figure(figsize=(width, height), dpi=200, layout="constrained")
    FigureCanvasAgg(picture)
    return picture


METADATA = {
    "png": {"Software": None},
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
}
"""Metadata that would change from one drawing to the next, by format."""


def exported(picture: Figure, format: str = "png") -> bytes:
    """The figure as PNG or PDF; the same drawing gives the same bytes."""
    out = io.BytesIO()
    with rc_context({"pdf.fonttype": 42}):  # text that stays text in an editor
        picture.savefig(out, format=format, metadata=METADATA[format])
    return out.getvalue()


def colour(series: int) -> str:
    """Colour of a series, cycling after the last one."""
    return SERIES[series % len(SERIES)]


def pale(shade: str) -> str:
    """The colour mixed half with white."""
    red, green, blue = to_rgb(shade)
    return to_hex(((1 + red) / 2, (1 + green) / 2, (1 + blue) / 2))


def tidy(panel: Axes, grid: str) -> None:
    """Hide the top and right spines and draw a faint grid along one axis or both (`x`, `y` or `both`)."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)
    panel.grid(axis=grid, color=GRID, linewidth=0.6)  # type: ignore[arg-type]
    panel.set_axisbelow(True)


def diamonds(panel: Axes, x: Sequence[float], y: Sequence[float], edge: str = "white") -> None:
    """Draw a published value as a diamond, or a range as two joined diamonds."""
    panel.plot(x, y, color=PAPER, linewidth=2.2, solid_capstyle="butt", zorder=3)
    panel.plot(x, y, "D", color=PAPER, markersize=5, markeredgecolor=edge, zorder=4)


def diamond_key() -> Line2D:
    """Legend entry of published values."""
    return Line2D([], [], color=PAPER, marker="D", markersize=4.5, label="published")
