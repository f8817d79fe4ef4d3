"""Attention masks of verification passes, as a table and as figures.

Owns how masks are shown. `forms` computes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from repro.reports.figures.figure import frame
from repro.reports.figures.paint import GREY, canvas, drawn_alike, exported
from repro.reports.figures.shown import titled
from repro.reports.formats.layout import Grid, Heading, Page
from repro.reports.tree_drawings.forms import DiagramsSpec, Mask

HEADINGS = ("pattern", "tokens", "points", "computed", "of all (%)", "of the causal half (%)")
NEEDED, IDLE = "#f4e08a", "#27446b"
ORIGIN = "Nothing is emulated or measured: computed from the patterns"
INCHES = 2.1
"""Side of a mask, inches."""

Figures = dict[str, tuple[str, float]]
"""Unit and number by column."""


def figures(mask: Mask) -> Figures:
    """The numbers of a mask that the table shows."""
    tokens, computed = len(mask), sum(map(sum, mask))
    return {
        "tokens": ("tokens", tokens),
        "points": ("points", tokens**2),
        "computed": ("points", computed),
        "density": ("%", 100 * computed / tokens**2),
        "causal_density": ("%", 200 * computed / (tokens * (tokens + 1))),
    }


def page(spec: DiagramsSpec, masks: Sequence[Mask]) -> Page:
    """The masks' numbers as a page with one table."""
    lines = []
    for form, mask in zip(spec.masks, masks, strict=True):
        numbers = [number for _, number in figures(mask).values()]
        lines.append((form.name, *(f"{n:.0f}" for n in numbers[:3]), *(f"{n:.1f}" for n in numbers[3:])))
    notes = list(spec.footnotes)
    notes.append(f"{ORIGIN}; made by `python -m repro experiment={spec.experiment}`.")
    grid = Grid(tuple(map(Heading, HEADINGS)), tuple(lines), "lrrrrr")
    return Page(spec.experiment, spec.title, (grid,), tuple(notes))


@drawn_alike
def draw(spec: DiagramsSpec, masks: Sequence[Mask], format: str = "png") -> bytes:
    """PNG or PDF with one panel per mask, queries by keys; the same masks give the same bytes."""
    picture = canvas(0.4 + INCHES * len(masks), INCHES + 1.35)
    panels = picture.subplots(1, len(masks), squeeze=False)[0]
    for panel, form, mask in zip(panels, spec.masks, masks, strict=True):
        tokens = len(mask)
        panel.pcolormesh(
            np.array(mask, dtype=float), cmap=ListedColormap([IDLE, NEEDED]), vmin=0, vmax=1,
            edgecolors="#3c5a82", linewidth=0.4 if tokens <= 16 else 0.08,
        )  # fmt: skip
        panel.set_aspect("equal")
        panel.invert_yaxis()
        panel.spines[:].set_visible(False)
        panel.set_xticks([])
        panel.set_yticks([])
        share = figures(mask)["density"][1]
        panel.set_title(form.name, fontsize=8.5)
        panel.set_xlabel(f"{tokens} tokens, {share:.0f}% computed", fontsize=7.5, color=GREY)
    panels[0].set_ylabel("query", fontsize=8)
    keys = [Patch(color=NEEDED, label="computed"), Patch(color=IDLE, label="not needed")]
    frame(
        picture,
        titled(spec.title, spec.picture),
        list(keys),
        f"Columns are keys, in the rows' order. {ORIGIN}.",
    )
    return exported(picture, format)
