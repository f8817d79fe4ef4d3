"""Files of a table, side by side: Markdown, CSV, LaTeX and the figure.

Owns their names and how they are written. The formats own their contents.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePath

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.records.record import write_atomically
from repro.reports.formats.latex import to_latex
from repro.reports.formats.layout import page
from repro.reports.formats.render import to_csv, to_markdown
from repro.reports.reference.bibliography import citations
from repro.reports.tables.table import Table

FORMATS: dict[str, Callable[[Table, Sequence[str]], str | bytes]] = {
    "md": lambda table, bibtex: to_markdown(page(table), bibtex),
    "csv": lambda table, bibtex: to_csv(table),
    "tex": lambda table, bibtex: to_latex(page(table), bibtex),
    "png": lambda table, bibtex: _picture(table),
}


def write_all(
    table: Table, folder: Path, bibliography: dict[str, str], formats: Collection[str] = tuple(FORMATS)
) -> dict[str, Path]:
    """Write a table as `<folder>/<experiment>.<format>`; a table without a figure has no `png`.

    `bibliography` holds BibTeX entries by key, as `load_bibliography` reads them. Files are replaced
    atomically.

    Raises:
        InputError: an unknown format, a cited paper without an entry, a folder that cannot be written to.
    """
    for name in formats:
        if name not in FORMATS:
            raise InputError(unknown("table format", name, FORMATS))
    bibtex = citations(table.papers, bibliography)
    wanted = [name for name in FORMATS if name in formats and (name != "png" or table.figure)]
    return write_files(table.experiment, folder, {name: FORMATS[name](table, bibtex) for name in wanted})


def write_files(experiment: str, folder: Path, contents: Mapping[str, str | bytes]) -> dict[str, Path]:
    """Write contents by format as `<folder>/<experiment>.<format>`, each atomically.

    Raises:
        InputError: the folder cannot be written to.
    """
    path = folder / PurePath(experiment)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files = {name: path.parent / f"{path.name}.{name}" for name in contents}
        for name, file in files.items():
            write_atomically(file, contents[name])
    except OSError as wrong:
        raise InputError(f"table {experiment!r} cannot be written to {folder}: {wrong.strerror}") from wrong
    return files


def _picture(table: Table) -> bytes:
    from repro.reports.figures.figure import draw  # imported late: matplotlib takes a second

    return draw(table)
