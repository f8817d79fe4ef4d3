"""Pages of token trees and masks as files: Markdown, CSV, LaTeX and a figure, in the format of tables.

Owns their numbers and how these are worded. `drawing` owns the figures.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from repro.core.digits import csv_of
from repro.experiments.tree_drawings.drawing import MASK_ORIGIN, TREE_ORIGIN, draw_masks, draw_trees
from repro.experiments.tree_drawings.forms import (
    DiagramSpec,
    DiagramsSpec,
    Mask,
    VerificationDiagram,
    lookahead_mask,
    tree_mask,
)
from repro.reports.files import write_page
from repro.reports.formats.layout import ABSENT, Grid, Page, signs
from repro.reports.formats.render import CSV_HEADER
from repro.reports.tables.table import legend

TREE_ALIGNMENTS = {
    "tree": "l",
    "width": "r",
    "nodes by level": "l",
    "estimate": "r",
    "estimate, refined": "r",
}
TREE_ALIGNMENTS |= dict.fromkeys(("measured", "measured, refined", "changed"), "r")
NODE_ALIGNMENTS = dict.fromkeys(("own accuracy", "accepted, estimate"), "r")
NODE_ALIGNMENTS |= dict.fromkeys(("in the estimated tree", "in the final tree"), "l")
MASK_ALIGNMENTS = {"pattern": "l"}
MASK_ALIGNMENTS |= dict.fromkeys(
    ("tokens", "points", "computed", "of all (%)", "of the causal half (%)"), "r"
)
"""Headings of the tables, with their alignments; nodes have their tree's name before them."""

FiguresByColumn = Mapping[str, tuple[str, float | None]]


def write_forms(
    spec: DiagramsSpec,
    forms: Sequence[VerificationDiagram | None],
    folder: Path,
    bibliography: dict[str, str],
    formats: Collection[str],
) -> tuple[Page, dict[str, Path]]:
    """Write forms to a folder, as `files.path_of` names them.

    Args:
        spec: the forms as configured.
        forms: their trees in the spec's order; None for a form that is not a tree.
        folder: of the tables.
        bibliography: BibTeX entries by key.
        formats: those that are wanted.

    Returns:
        the page, and its files by format.

    Raises:
        InputError: the paper has no BibTeX entry, or the folder cannot be written to.
    """
    trees = [form for form in forms if form]
    if spec.masks:
        masks = [
            lookahead_mask(entry.lookahead)
            if entry.lookahead
            else tree_mask(form.paths if form else (), entry.rootless)
            for entry, form in zip(spec.masks, forms, strict=True)
        ]
        page, draw_picture = mask_page(spec, masks), partial(draw_masks, spec, masks)
        make_csv = partial(to_csv, spec.masks, [mask_figures(mask) for mask in masks])
    else:
        page, draw_picture = tree_page(spec, trees), partial(draw_trees, spec, trees)
        make_csv = partial(to_csv, spec.trees, [tree_figures(tree) for tree in trees])
    return page, write_page(page, make_csv, [spec.paper], folder, bibliography, formats, draw_picture)


def to_csv(forms: Sequence[DiagramSpec], figures: Sequence[FiguresByColumn]) -> str:
    """CSV with one line per number of a form in ten digits, in a table's columns."""
    lines: list[Mapping[str, object]] = []
    for form, numbers in zip(forms, figures, strict=True):
        for column, (unit, figure) in numbers.items():
            line = {"row": form.name, "id": form.name, "column": column, "unit": unit, "ours": figure}
            line |= {"marks": "fitted"} if form.match else {}
            lines.append(line)
    return csv_of(CSV_HEADER, lines)


def mask_figures(mask: Mask) -> dict[str, tuple[str, float]]:
    """The numbers of a mask that the table shows."""
    token_count, computed_count = len(mask), sum(map(sum, mask))
    return {
        "tokens": ("tokens", token_count),
        "points": ("points", token_count**2),
        "computed": ("points", computed_count),
        "density": ("%", 100 * computed_count / token_count**2),
        "causal_density": ("%", 200 * computed_count / (token_count * (token_count + 1))),
    }


def mask_page(spec: DiagramsSpec, masks: Sequence[Mask]) -> Page:
    """The masks' numbers as a page with one table."""
    lines = []
    for form, mask in zip(spec.masks, masks, strict=True):
        numbers = [figure for _, figure in mask_figures(mask).values()]
        lines.append((form.name, *(f"{n:.0f}" for n in numbers[:3]), *(f"{n:.1f}" for n in numbers[3:])))
    return _page(spec, [Grid.of(MASK_ALIGNMENTS, lines)], spec.footnotes, MASK_ORIGIN)


def _page(spec: DiagramsSpec, grids: Sequence[Grid], notes: Sequence[str], origin: str) -> Page:
    footer = f"{origin}; made by `python -m repro experiment={spec.experiment}`."
    return Page(spec.experiment, spec.title, tuple(grids), (*notes, footer))


def tree_figures(form: VerificationDiagram) -> dict[str, tuple[str, float | None]]:
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


def tree_page(spec: DiagramsSpec, forms: Sequence[VerificationDiagram]) -> Page:
    """The trees as tables: one of all trees, and one per tree of its nodes."""
    notes = [*legend("fitted" for form in forms if form.fitted), *spec.footnotes]
    return _page(spec, [Grid.of(TREE_ALIGNMENTS, map(_line, forms)), *map(_nodes, forms)], notes, TREE_ORIGIN)


def _line(form: VerificationDiagram) -> tuple[str, ...]:
    levels: dict[int, int] = {}
    for path in form.paths:
        levels[len(path)] = levels.get(len(path), 0) + 1
    mark = signs(("fitted",)) if form.fitted else ""
    width, *lengths, changed_nodes = (figure for _, figure in tree_figures(form).values())
    cells = [ABSENT if length is None else f"{length:.2f}{mark}" for length in lengths]
    return (form.name, f"{width:.0f}", ", ".join(map(str, levels.values())), *cells, f"{changed_nodes:.0f}")


def _nodes(form: VerificationDiagram) -> Grid:
    lines = []
    for path in sorted({*form.paths, *form.estimated}, key=lambda path: (len(path), path)):
        accuracy, value = form.accuracies[len(path) - 1][path[-1]], form.value(path)
        marks = ("yes" if path in paths else "no" for paths in (form.estimated, form.paths))
        lines.append((".".join(map(str, path)), f"{accuracy:.3f}", f"{value:.3f}", *marks))
    return Grid.of({f"{form.name}: node": "l", **NODE_ALIGNMENTS}, lines)
