"""Drawings of token trees, estimated and refined, and of attention masks.

Owns how they are drawn. `forms` defines them, `page` their numbers and files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from repro.experiments.tree_drawings.forms import DiagramsSpec, Mask, Path, VerificationDiagram
from repro.reports.figures.figure import frame
from repro.reports.figures.paint import GREY, OUR_COLOUR, PAPER_COLOUR, canvas, default_style, export
from repro.reports.figures.shown import artifact_title

TREE_ORIGIN = "Nothing is emulated or measured: made of recorded ranks and published values"
MASK_ORIGIN = "Nothing is emulated or measured: computed from the patterns"

NEEDED_COLOUR, IDLE_COLOUR = "#f4e08a", "#27446b"
MASK_INCHES = 2.1
"""Side of a mask, inches."""

NODE_SIZE = 15.5
"""Marker size of a node, points."""
LEVEL_INCHES, TITLE_INCHES = 0.72, 0.95
"""Inches per level, and for the rest of a panel."""
LEAF_INCHES = 0.5
"""Inches per leaf."""


@default_style
def draw_masks(spec: DiagramsSpec, masks: Sequence[Mask], format: str = "png") -> bytes:
    """PNG or PDF with one panel per mask, queries by keys; the same masks give the same bytes."""
    picture = canvas(0.4 + MASK_INCHES * len(masks), MASK_INCHES + 0.55)
    panels = picture.subplots(1, len(masks), squeeze=False)[0]
    for panel, form, mask in zip(panels, spec.masks, masks, strict=True):
        token_count = len(mask)
        panel.pcolormesh(
            np.array(mask, dtype=float), cmap=ListedColormap([IDLE_COLOUR, NEEDED_COLOUR]), vmin=0, vmax=1,
            edgecolors="#3c5a82", linewidth=0.4 if token_count <= 16 else 0.08,
        )  # fmt: skip
        panel.set_aspect("equal")
        panel.invert_yaxis()
        panel.spines[:].set_visible(False)
        panel.set_xticks([])
        panel.set_yticks([])
        share = 100 * sum(map(sum, mask)) / token_count**2
        panel.set_title(form.name, fontsize=8.5)
        panel.set_xlabel(f"{token_count} tokens, {share:.0f}% computed", fontsize=7.5, color=GREY)
    panels[0].set_ylabel("query", fontsize=8)
    keys = [Patch(color=NEEDED_COLOUR, label="computed"), Patch(color=IDLE_COLOUR, label="not needed")]
    frame(
        picture,
        artifact_title(spec.title, spec.picture),
        list(keys),
        f"Columns are keys, in the rows' order. {MASK_ORIGIN}.",
    )
    return export(picture, format)


@default_style
def draw_trees(spec: DiagramsSpec, forms: Sequence[VerificationDiagram], format: str = "png") -> bytes:
    """PNG or PDF with one panel per tree, nodes as circles with their accuracy in percent; deterministic."""
    widest = max(x for form in forms for x, _ in _node_positions(form).values())
    depths = [max(map(len, _node_positions(form))) for form in forms]
    heights = [TITLE_INCHES + LEVEL_INCHES * depth for depth in depths]
    picture = canvas(1.4 + LEAF_INCHES * (widest + 1), 0.1 + sum(heights))
    panels = picture.subplots(len(forms), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, form, depth in zip(panels, forms, depths, strict=True):
        _tree(panel, form)
        panel.set_xlim(-0.7, widest + 0.7)
        panel.set_ylim(depth + 0.4, -0.4)
    frame(
        picture,
        artifact_title(spec.title, spec.picture),
        list(_keys(forms)),
        f"In a node: how often its rank of its head is right, in percent. {TREE_ORIGIN}.",
    )
    return export(picture, format)


def _tree(panel: Axes, form: VerificationDiagram) -> None:
    """Draw the nodes of both trees: kept, added by the refinement, or dropped by it."""
    positions = _node_positions(form)
    for path, (x, y) in positions.items():
        if path:
            shade, style, _ = _look(form, path)
            parent = positions[path[:-1]]
            panel.plot([parent[0], x], [parent[1], y], style, color=shade, linewidth=1.1, zorder=1)
    for path, (x, y) in positions.items():
        shade, style, fill = _look(form, path)
        panel.plot(
            x, y, "o", markersize=NODE_SIZE, color=fill, markeredgecolor=shade, markeredgewidth=1.2, zorder=2
        )
        label = f"{100 * form.accuracies[len(path) - 1][path[-1]]:.0f}" if path else "root"
        font_size, text_colour = (6.0, "white") if not path else (7.0, "white" if fill == shade else shade)
        panel.text(x, y, label, fontsize=font_size, color=text_colour, ha="center", va="center", zorder=3)
    depth = max(map(len, positions))
    panel.set_yticks(range(1, depth + 1), [f"head {head}" for head in range(depth)], fontsize=8, color=GREY)
    panel.set_xticks([])
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    estimate, refined = form.measured or form.expected
    kind = "measured" if form.measured else "by the estimate"
    changed = f" to {refined:.2f}" if refined != estimate else ""
    is_unchanged = form.measured and set(form.paths) == set(form.estimated)
    kind += "; the search along recorded answers changed no node" if is_unchanged else ""
    panel.set_title(
        f"{form.name}: {estimate:.2f}{changed} tokens a verification, {kind}", fontsize=9, loc="left"
    )


def _look(form: VerificationDiagram, path: Path) -> tuple[str, str, str]:
    """Edge colour, line style and fill colour of a node."""
    if path and path not in form.paths:
        return GREY, "--", "white"
    if path and path not in form.estimated:
        return PAPER_COLOUR, "-", PAPER_COLOUR
    return OUR_COLOUR, "-", OUR_COLOUR


def _node_positions(form: VerificationDiagram) -> dict[Path, tuple[float, float]]:
    """Positions of nodes: leaves side by side, parents centred over their children, levels downwards."""
    nodes = {(), *form.paths, *form.estimated}
    positions: dict[Path, tuple[float, float]] = {}
    next_x = 0.0

    def place(path: Path) -> float:
        nonlocal next_x
        children = sorted(node for node in nodes if node[:-1] == path and node)
        if children:
            child_xs = [place(child) for child in children]
            x = (child_xs[0] + child_xs[-1]) / 2
        else:
            x, next_x = next_x, next_x + 1
        positions[path] = (x, float(len(path)))
        return x

    place(())
    return positions


def _keys(forms: Sequence[VerificationDiagram]) -> Iterator[Artist]:
    def dot(shade: str, fill: str, label: str) -> Line2D:
        return Line2D(
            [], [], marker="o", linestyle="", markersize=7, color=fill, markeredgecolor=shade, label=label
        )

    yield dot(OUR_COLOUR, OUR_COLOUR, "estimated")
    if any(set(form.paths) - set(form.estimated) for form in forms):
        yield dot(PAPER_COLOUR, PAPER_COLOUR, "added by the search")
        yield dot(GREY, "white", "dropped by it")
