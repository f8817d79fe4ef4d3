"""Pages of token trees and masks as files: Markdown, CSV, LaTeX and a figure, in the format of tables.

Owns the writing of the files. `mask_page` and `tree_page` own the contents.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from repro.core.digits import csv_text
from repro.reports.files import formats_of, write_files
from repro.reports.formats.latex import to_latex
from repro.reports.formats.layout import Page
from repro.reports.formats.render import CSV_HEADER, to_markdown
from repro.reports.reference.bibliography import citations
from repro.reports.tree_drawings import mask_page, tree_page
from repro.reports.tree_drawings.forms import (
    DiagramSpec,
    DiagramsSpec,
    VerificationDiagram,
    lookahead_mask,
    tree_mask,
)

Figures = Mapping[str, tuple[str, float | None]]


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
    shown, figures, picture = (_masks if spec.masks else _trees)(spec, forms)
    bibtex = citations([spec.paper], bibliography)
    asked = [*spec.masks, *spec.trees]
    contents: dict[str, Callable[[], str | bytes]] = {
        "md": lambda: to_markdown(shown, bibtex),
        "csv": lambda: to_csv(asked, figures),
        "tex": lambda: to_latex(shown, bibtex),
        "png": lambda: picture("png"),
        "pdf": lambda: picture("pdf"),
    }
    wanted = formats_of(formats, figure=True)
    return shown, write_files(spec.experiment, folder, {name: contents[name] for name in wanted})


Made = tuple[Page, Sequence[Figures], Callable[[str], bytes]]
"""The page, the numbers of each form, and a function that draws the figure in a format."""


def _masks(spec: DiagramsSpec, forms: Sequence[VerificationDiagram | None]) -> Made:
    masks = []
    for one, form in zip(spec.masks, forms, strict=True):
        if one.lookahead:
            masks.append(lookahead_mask(one.lookahead))
        elif form:
            masks.append(tree_mask(form.paths, one.rootless))
    figures = list(map(mask_page.figures, masks))
    return mask_page.page(spec, masks), figures, partial(mask_page.draw, spec, masks)


def _trees(spec: DiagramsSpec, forms: Sequence[VerificationDiagram | None]) -> Made:
    trees = [form for form in forms if form]
    return (
        tree_page.page(spec, trees),
        list(map(tree_page.figures, trees)),
        partial(tree_page.draw, spec, trees),
    )


def to_csv(forms: Sequence[DiagramSpec], figures: Sequence[Figures]) -> str:
    """CSV with one line per number of a form in ten digits, in a table's columns."""
    lines: list[Sequence[object]] = [CSV_HEADER]
    for form, numbers in zip(forms, figures, strict=True):
        for column, (unit, number) in numbers.items():
            line = {"row": form.name, "id": form.name, "column": column, "unit": unit, "ours": number}
            line |= {"marks": "fitted"} if form.match else {}
            lines.append([line.get(name, "") for name in CSV_HEADER])
    return csv_text(lines)
