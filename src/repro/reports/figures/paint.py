"""Colours and canvas shared by all figures, and their export to PNG and PDF.

Owns the look. Must not know tables or what is drawn.
"""

from __future__ import annotations

import io

from matplotlib import rc_context, style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from PIL import Image

OUR_COLOUR, PAPER_COLOUR, GREY, GRID_COLOUR = "#15599b", "#c8501e", "#6b6b6b", "#e4e4e4"
BASELINE_COLOURS = (
    *("#d9a441", "#8a5a9f", "#5b8c5a", "#46a6a6", "#b0506a", "#8c8c8c"),
    *("#7a5c3e", "#a8b545", "#cf8fb5", "#3f4f57", "#e0b48f", "#7fb894"),
    *("#b3b3d9", "#8f7f2f"),
)
"""Colours of baselines, in the order of a paper's list."""
SERIES_COLOURS = ("#5d7f8c", "#c9a98b", "#8fa27c", "#94799c", "#3f5a5a", "#b98b82", "#a9b6c2", "#6d5f4b")
"""Colours of series that are no systems; paler than those of systems, so that they are not read as one."""
RAMP_ENDS = ("#c3d3da", "#27454f")
"""First and last colour of series that rise with a number."""


Shade = tuple[float, float, float]
"""Red, green and blue, from 0 to 1."""


default_style = style.context("default")
"""Draws with matplotlib's defaults, whatever the user's own settings (`text.usetex`) are."""


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

SHADE_COUNT = 128
"""Colours of a PNG, which is stored with a palette: a third of the bytes."""


def export(picture: Figure, format: str = "png") -> bytes:
    """The figure as PNG or PDF; the same drawing gives the same bytes."""
    buffer = io.BytesIO()
    with rc_context({"pdf.fonttype": 42}):  # text that stays text in an editor
        picture.savefig(buffer, format=format, metadata=METADATA[format])
    return _fewer_colours(buffer) if format == "png" else buffer.getvalue()


def _fewer_colours(png: io.BytesIO) -> bytes:
    buffer = io.BytesIO()
    with Image.open(png) as image:
        quantized = image.convert("RGB").quantize(
            SHADE_COUNT, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
        )
        quantized.save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def colour(series: int) -> str:
    """Colour of a series that is no system, cycling after the last one."""
    return SERIES_COLOURS[series % len(SERIES_COLOURS)]


def ramp(colour_count: int) -> list[str]:
    """Colours from light to dark, for series that rise with a number."""
    first_shade, last_shade = (to_rgb(end) for end in RAMP_ENDS)
    shares = [i / max(colour_count - 1, 1) for i in range(colour_count)]
    return [_mix(first_shade, last_shade, share) for share in shares]


def _mix(first_shade: Shade, last_shade: Shade, share: float) -> str:
    red, green, blue = (a + (b - a) * share for a, b in zip(first_shade, last_shade, strict=True))
    return to_hex((red, green, blue))


def pale(shade: str) -> str:
    """The colour mixed half with white."""
    red, green, blue = to_rgb(shade)
    return to_hex(((1 + red) / 2, (1 + green) / 2, (1 + blue) / 2))


def tidy(panel: Axes, grid: str) -> None:
    """Hide the top and right spines and draw a faint grid along one axis or both (`x`, `y` or `both`)."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)
    panel.grid(axis=grid, color=GRID_COLOUR, linewidth=0.6)  # type: ignore[arg-type]
    panel.set_axisbelow(True)
