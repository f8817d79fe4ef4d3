"""Token trees, estimated and refined, as a table and as figures.

Owns how trees are shown. `forms` defines them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from repro.reports.figures.figure import frame
from repro.reports.figures.paint import GREY, OURS, PAPER, canvas, drawn_alike, exported
from repro.reports.figures.shown import titled
from repro.reports.formats.layout import ABSENT, Grid, Heading, Page, signs
from repro.reports.tables.table import MARKS
from repro.reports.tree_drawings.forms import DiagramsSpec, Path, VerificationDiagram

TREES = (
    "tree",
    "width",
    "nodes by level",
    "estimate",
    "estimate, refined",
    "measured",
    "measured, refined",
    "changed",
)
NODES = ("node", "own accuracy", "accepted, estimate", "in the estimated tree", "in the final tree")
ORIGIN = "Nothing is emulated or measured: made of recorded ranks and published values"

SIZE = 15.5
"""Marker size of a node, points."""
LEVEL, TITLE = 0.72, 0.95
"""Inches per level, and for the rest of a panel."""
LEAF = 0.5
"""Inches per leaf."""


def figures(form: VerificationDiagram) -> dict[str, tuple[str, float | None]]:
    """The numbers of a tree that the table shows, with units."""
    measured = form.measured or (None, None)
    return {
        "width": ("tokens", 1 + len(form.paths)),
        "expected": ("tokens/step", form.expected[0]),
        "expected_refined": ("tokens/step", form.expected[1]),
        "measured": ("tokens/step", measured[0]),
        "measured_refined": ("tokens/step", measured[1]),
        "changed": ("nodes", len(set(form.paths) - set(form.estimated))),
    }


def page(spec: DiagramsSpec, forms: Sequence[VerificationDiagram]) -> Page:
    """The trees as tables: one of all trees, and one per tree of its nodes."""
    marks = ("fitted",) if any(form.fitted for form in forms) else ()
    notes = [f"{MARKS[mark][0]} {MARKS[mark][1]}." for mark in marks]
    notes += spec.footnotes
    notes.append(f"{ORIGIN}; made by `python -m repro experiment={spec.experiment}`.")
    whole = Grid(tuple(map(Heading, TREES)), tuple(map(_line, forms)), "lrlrrrrr")
    return Page(spec.experiment, spec.title, (whole, *map(_nodes, forms)), tuple(notes))


def _line(form: VerificationDiagram) -> tuple[str, ...]:
    levels: dict[int, int] = {}
    for path in form.paths:
        levels[len(path)] = levels.get(len(path), 0) + 1
    mark = signs(("fitted",)) if form.fitted else ""
    width, *lengths, changed = (number for _, number in figures(form).values())
    shown = [ABSENT if length is None else f"{length:.2f}{mark}" for length in lengths]
    return (form.name, f"{width:.0f}", ", ".join(map(str, levels.values())), *shown, f"{changed:.0f}")


def _nodes(form: VerificationDiagram) -> Grid:
    lines = []
    for path in sorted({*form.paths, *form.estimated}, key=lambda path: (len(path), path)):
        own, value = form.accuracies[len(path) - 1][path[-1]], form.value(path)
        held = ("yes" if path in paths else "no" for paths in (form.estimated, form.paths))
        lines.append((".".join(map(str, path)), f"{own:.3f}", f"{value:.3f}", *held))
    headings = (Heading(f"{form.name}: {NODES[0]}"), *map(Heading, NODES[1:]))
    return Grid(headings, tuple(lines), "lrrll")


@drawn_alike
def draw(spec: DiagramsSpec, forms: Sequence[VerificationDiagram], format: str = "png") -> bytes:
    """PNG or PDF with one panel per tree, nodes as circles with their accuracy in percent; deterministic."""
    widest = max(x for form in forms for x, _ in _places(form).values())
    depths = [max(map(len, _places(form))) for form in forms]
    heights = [TITLE + LEVEL * depth for depth in depths]
    picture = canvas(1.4 + LEAF * (widest + 1), 1.0 + sum(heights))
    panels = picture.subplots(len(forms), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, form, depth in zip(panels, forms, depths, strict=True):
        _tree(panel, form)
        panel.set_xlim(-0.7, widest + 0.7)
        panel.set_ylim(depth + 0.4, -0.4)
    frame(
        picture,
        titled(spec.title, spec.picture),
        list(_keys(forms)),
        f"In a node: how often its rank of its head is right, in percent. {ORIGIN}.",
    )
    return exported(picture, format)


def _tree(panel: Axes, form: VerificationDiagram) -> None:
    """Draw the nodes of both trees: kept, added by the refinement, or dropped by it."""
    places = _places(form)
    for path, (x, y) in places.items():
        if path:
            shade, style, _ = _look(form, path)
            above = places[path[:-1]]
            panel.plot([above[0], x], [above[1], y], style, color=shade, linewidth=1.1, zorder=1)
    for path, (x, y) in places.items():
        shade, style, fill = _look(form, path)
        panel.plot(
            x, y, "o", markersize=SIZE, color=fill, markeredgecolor=shade, markeredgewidth=1.2, zorder=2
        )
        words = f"{100 * form.accuracies[len(path) - 1][path[-1]]:.0f}" if path else "root"
        size, ink = (6.0, "white") if not path else (7.0, "white" if fill == shade else shade)
        panel.text(x, y, words, fontsize=size, color=ink, ha="center", va="center", zorder=3)
    depth = max(map(len, places))
    panel.set_yticks(range(1, depth + 1), [f"head {head}" for head in range(depth)], fontsize=8, color=GREY)
    panel.set_xticks([])
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    before, after = form.measured or form.expected
    kind = "measured" if form.measured else "by the estimate"
    changed = f" to {after:.2f}" if after != before else ""
    same = form.measured and set(form.paths) == set(form.estimated)
    kind += "; the search along recorded answers changed no node" if same else ""
    panel.set_title(
        f"{form.name}: {before:.2f}{changed} tokens a verification, {kind}", fontsize=9, loc="left"
    )


def _look(form: VerificationDiagram, path: Path) -> tuple[str, str, str]:
    """Edge colour, line style and fill colour of a node."""
    if path and path not in form.paths:
        return GREY, "--", "white"
    if path and path not in form.estimated:
        return PAPER, "-", PAPER
    return OURS, "-", OURS


def _places(form: VerificationDiagram) -> dict[Path, tuple[float, float]]:
    """Positions of nodes: leaves side by side, parents centred over their children, levels downwards."""
    nodes = {(), *form.paths, *form.estimated}
    places: dict[Path, tuple[float, float]] = {}
    across = 0.0

    def place(path: Path) -> float:
        nonlocal across
        children = sorted(node for node in nodes if node[:-1] == path and node)
        if children:
            under = [place(child) for child in children]
            x = (under[0] + under[-1]) / 2
        else:
            x, across = across, across + 1
        places[path] = (x, float(len(path)))
        return x

    place(())
    return places


def _keys(forms: Sequence[VerificationDiagram]) -> Iterator[Artist]:
    def dot(shade: str, fill: str, words: str) -> Line2D:
        return Line2D(
            [], [], marker="o", linestyle="", markersize=7, color=fill, markeredgecolor=shade, label=words
        )

    yield dot(OURS, OURS, "estimated")
    if any(set(form.paths) - set(form.estimated) for form in forms):
        yield dot(PAPER, PAPER, "added by the search")
        yield dot(GREY, "white", "dropped by it")
