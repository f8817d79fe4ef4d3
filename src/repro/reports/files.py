"""Files of a table, side by side: Markdown, CSV, LaTeX and the figure.

Owns their names and how they are written. The formats own their contents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from repro.core.errors import InputError, warn
from repro.core.reading import require_no_link
from repro.core.registry import unknown
from repro.records.record import write_atomically
from repro.reports.formats.latex import to_latex
from repro.reports.formats.layout import Page, page
from repro.reports.formats.render import to_csv, to_markdown
from repro.reports.paper import PaperTable
from repro.reports.reference.bibliography import OWN_KEY, citations, read_entries
from repro.reports.tables.table import Table

FORMATS = ("md", "csv", "tex", "png", "pdf", "bib")

USUAL_FORMATS = FORMATS[:-1]
"""The formats that a table has if none is named: Markdown and LaTeX have its BibTeX as well."""

ALTERED_MARK = "@"
"""Separates an experiment's name from its changed settings in the name of a table's folder."""

PICTURE_FORMATS = ("png", "pdf")
"""Formats of a table's figure."""


def path_of(folder: Path, experiment: str, format: str) -> Path:
    """The file of a table in a folder of results: `<experiment>/table.<format>`, or `figure.<format>`.

    One `paper.bib` is for all tables of the folder; a format with a stem (`paper.tex`) is a file's name.
    """
    if "." in format:
        return folder / experiment / format
    if format == "bib":
        return folder / "paper.bib"
    stem = "figure" if format in PICTURE_FORMATS else "table"
    return folder / experiment / f"{stem}.{format}"


def is_of(table: str, artifact: str) -> bool:
    """Whether a table is of an artifact: `fig1a` and `fig1_mean` of `fig1`, `fig10` not."""
    return re.fullmatch(rf"{re.escape(artifact)}([a-z]?(_.*)?)?", table) is not None


SWEEPS_FOLDER = "sweeps/"
"""Folder of the tables of sweeps, of which no experiment says what they show."""

VALIDATION_FOLDER = "validation"
"""Folder of the tables that hold the emulator against measurements."""


def table_names(folder: Path) -> list[str]:
    """Names of all tables, pages of claims and so on that a folder of results has, sorted.

    Those under `validation/` have no cells; `python -m workshop.validation` makes them.
    """
    names = (path.parent.relative_to(folder).as_posix() for path in folder.rglob("table.csv"))
    return sorted(name for name in names if not name.startswith(f"{VALIDATION_FOLDER}/"))


def validations(folder: Path) -> list[str]:
    """Names of the tables that hold the emulator against measurements, sorted."""
    names = (
        path.parent.relative_to(folder).as_posix() for path in (folder / VALIDATION_FOLDER).rglob("table.csv")
    )
    return sorted(names)


def formats_of(names: Collection[str], has_figure: bool) -> list[str]:
    """The wanted formats in the usual order, without pictures if there is no figure.

    Raises:
        InputError: an unknown format.
    """
    for name in names:
        if name not in FORMATS:
            raise InputError(unknown("table format", name, FORMATS))
    return [name for name in FORMATS if name in names and (has_figure or name not in PICTURE_FORMATS)]


def write_all(
    table: Table,
    folder: Path,
    bibliography: dict[str, str],
    formats: Collection[str] = USUAL_FORMATS,
    made_page: Page | None = None,
) -> dict[str, Path]:
    """Write a table's files; a table without a figure, or without anything to show in it, has no pictures.

    `bibliography` holds BibTeX entries by key, as `load_bibliography` reads them; `made_page` is the table's
    page where it was made. Files are replaced atomically.

    Raises:
        InputError: an unknown format, a cited paper without an entry, a folder that cannot be written to.
    """
    has_figure = table.figure and any(row.has_something for row in table.rows)
    draw_picture = partial(_picture, table) if has_figure else None
    # A sweep's own table is as a paper has it, without what is the same in every row.
    make_latex = PaperTable().latex if table.experiment.startswith(SWEEPS_FOLDER) else None
    return write_page(
        made_page or page(table),
        lambda: to_csv(table),
        table.papers,
        folder,
        bibliography,
        formats,
        draw_picture,
        partial(make_latex, table) if make_latex else None,
    )


def write_page(
    page: Page,
    make_csv: Callable[[], str],
    papers: Sequence[str],
    folder: Path,
    bibliography: dict[str, str],
    formats: Collection[str] = USUAL_FORMATS,
    draw_picture: Callable[[str], bytes] | None = None,
    make_latex: Callable[[Sequence[str]], str] | None = None,
) -> dict[str, Path]:
    """Write a page's files to a folder, as `path_of` names them; returns them by format.

    Args:
        page: its text.
        make_csv: makes its figures as CSV.
        papers: that it cites.
        folder: of results.
        bibliography: BibTeX entries by key.
        formats: that are wanted.
        draw_picture: draws its figure in a format; without it the page has none.
        make_latex: makes LaTeX with comments at its end; by default that of the page.

    Raises:
        InputError: an unknown format, a cited paper without an entry, a folder that cannot be written to.
    """
    bibtex = citations(papers, bibliography)
    contents: dict[str, Callable[[], str | bytes]] = {
        "md": lambda: to_markdown(page, bibtex),
        "csv": make_csv,
        "tex": lambda: make_latex(bibtex) if make_latex else to_latex(page, bibtex),
        **{name: partial(draw_picture, name) for name in PICTURE_FORMATS if draw_picture},
        "bib": lambda: _with_entries(folder, papers, bibliography),
    }
    names = formats_of(formats, draw_picture is not None)
    return write_files(page.experiment, folder, {name: contents[name] for name in names})


def write_paper(
    paper: PaperTable, table: Table, folder: Path, bibliography: dict[str, str]
) -> dict[str, Path]:
    """Write `paper.tex` and its figure to the table's place, and its citations to the folder's `paper.bib`.

    Raises:
        InputError: there is no such row or column, a cited paper has no entry, or the folder cannot be
            written to.
    """
    text = paper.latex(table, [r"cite with \bibliography{paper}"])
    bibtex = _with_entries(folder, table.papers, bibliography)
    selection = paper.figure(table)
    pictures = {
        f"paper.{ext}": partial(_picture, selection, ext, bare=True) for ext in PICTURE_FORMATS if selection
    }
    return write_files(table.experiment, folder, {"paper.tex": text, **pictures, "bib": bibtex})


def _with_entries(folder: Path, papers: Sequence[str], bibliography: dict[str, str]) -> str:
    """The folder's `paper.bib` with the entries of these papers, each once."""
    path = path_of(folder, "", "bib")
    entries = read_entries(path) if path.exists() else {}
    entries |= zip((*papers, OWN_KEY), citations(papers, bibliography), strict=True)
    return "\n\n".join(entries.values()) + "\n"


def write_files(
    experiment: str, folder: Path, contents: Mapping[str, str | bytes | Callable[[], str | bytes]]
) -> dict[str, Path]:
    """Write contents, or what makes them, in this order by format as `path_of` names them, each atomically.

    A picture that cannot be drawn is left out with a warning.

    Raises:
        InputError: the folder cannot be written to, or is a link; or of what makes a content.
    """
    files = {}
    for name, content in contents.items():
        file = path_of(folder, experiment, name)
        try:
            data = content() if callable(content) else content
        except InputError:
            raise
        except Exception as wrong:  # whatever a library of pictures or fonts lacks on this machine
            if file.suffix[1:] not in PICTURE_FORMATS:
                raise
            warn(f"table {experiment!r} has no {file.name}: {type(wrong).__name__}: {wrong}")
            continue
        try:
            require_no_link(folder, file.parent).mkdir(parents=True, exist_ok=True)
            write_atomically(file, data)
        except OSError as wrong:
            raise InputError(
                f"table {experiment!r} cannot be written to {folder}: {wrong.strerror}"
            ) from wrong
        files[name] = file
    return files


def _picture(table: Table, format: str, bare: bool = False) -> bytes:
    from repro.reports.figures.figure import draw  # imported late: matplotlib takes a second

    return draw(table, format, bare)
