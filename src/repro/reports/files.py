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
from repro.reports.formats.layout import page
from repro.reports.formats.render import to_csv, to_markdown
from repro.reports.paper import PaperTable
from repro.reports.reference.bibliography import OWN, citations, read_entries
from repro.reports.tables.table import Table

FORMATS: dict[str, Callable[[Table, Sequence[str]], str | bytes]] = {
    "md": lambda table, bibtex: to_markdown(page(table), bibtex),
    "csv": lambda table, bibtex: to_csv(table),
    "tex": lambda table, bibtex: _tex(table, bibtex),
    "png": lambda table, bibtex: _picture(table, "png"),
    "pdf": lambda table, bibtex: _picture(table, "pdf"),
}

ALTERED = "@"
"""Separates an experiment's name from its changed settings in the name of a table's folder."""

PICTURES = ("png", "pdf")
"""Formats of a table's figure."""


def path_of(folder: Path, experiment: str, format: str) -> Path:
    """The file of a table in a folder of results: `<experiment>/table.<format>`, or `figure.<format>`.

    A format with a stem (`paper.tex`) is a file's name.
    """
    if "." in format:
        return folder / experiment / format
    stem = "figure" if format in PICTURES else "table"
    return folder / experiment / f"{stem}.{format}"


def is_of(table: str, artifact: str) -> bool:
    """Whether a table is of an artifact: `fig1a` and `fig1_mean` of `fig1`, `fig10` not."""
    return re.fullmatch(rf"{re.escape(artifact)}([a-z]?(_.*)?)?", table) is not None


SWEEPS = "sweeps/"
"""Folder of the tables of sweeps, of which no experiment says what they show."""

VALIDATION = "validation"
"""Folder of the tables that hold the emulator against measurements."""


def written(folder: Path) -> list[str]:
    """Names of all tables, pages of claims and so on that a folder of results has, sorted.

    Those under `validation/` have no cells; `python -m workshop.validation` makes them.
    """
    names = (path.parent.relative_to(folder).as_posix() for path in folder.rglob("table.csv"))
    return sorted(name for name in names if not name.startswith(f"{VALIDATION}/"))


def validations(folder: Path) -> list[str]:
    """Names of the tables that hold the emulator against measurements, sorted."""
    names = (path.parent.relative_to(folder).as_posix() for path in (folder / VALIDATION).rglob("table.csv"))
    return sorted(names)


def formats_of(wanted: Collection[str], figure: bool) -> list[str]:
    """The wanted formats in the usual order, without pictures if there is no figure.

    Raises:
        InputError: an unknown format.
    """
    for name in wanted:
        if name not in FORMATS:
            raise InputError(unknown("table format", name, FORMATS))
    return [name for name in FORMATS if name in wanted and (figure or name not in PICTURES)]


def write_all(
    table: Table, folder: Path, bibliography: dict[str, str], formats: Collection[str] = tuple(FORMATS)
) -> dict[str, Path]:
    """Write a table's files; a table without a figure has no pictures.

    `bibliography` holds BibTeX entries by key, as `load_bibliography` reads them. Files are replaced
    atomically.

    Raises:
        InputError: an unknown format, a cited paper without an entry, a folder that cannot be written to.
    """
    wanted = formats_of(formats, table.figure is not None)
    bibtex = citations(table.papers, bibliography)
    return write_files(
        table.experiment, folder, {name: partial(FORMATS[name], table, bibtex) for name in wanted}
    )


def write_paper(
    paper: PaperTable, table: Table, folder: Path, bibliography: dict[str, str]
) -> dict[str, Path]:
    """Write `paper.tex` and its figure to the table's place, and its citations to the folder's `paper.bib`.

    That has each entry once, for all tables that are written to the folder.

    Raises:
        InputError: there is no such row or column, a cited paper has no entry, or the folder cannot be
            written to.
    """
    text = paper.latex(table, [r"cite with \bibliography{paper}"])
    before = folder / "paper.bib"
    entries = read_entries(before) if before.exists() else {}
    entries |= zip((*table.papers, OWN), citations(table.papers, bibliography), strict=True)
    shown = paper.figure(table)
    pictures = {f"paper.{end}": partial(_picture, shown, end, bare=True) for end in PICTURES if shown}
    files = write_files(table.experiment, folder, {"paper.tex": text, **pictures})
    return files | write_files("", folder, {"paper.bib": "\n\n".join(entries.values()) + "\n"})


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
            made = content() if callable(content) else content
        except InputError:
            raise
        except Exception as wrong:  # whatever a library of pictures or fonts lacks on this machine
            if file.suffix[1:] not in PICTURES:
                raise
            warn(f"table {experiment!r} has no {file.name}: {type(wrong).__name__}: {wrong}")
            continue
        try:
            require_no_link(folder, file.parent).mkdir(parents=True, exist_ok=True)
            write_atomically(file, made)
        except OSError as wrong:
            raise InputError(
                f"table {experiment!r} cannot be written to {folder}: {wrong.strerror}"
            ) from wrong
        files[name] = file
    return files


def _tex(table: Table, bibtex: Sequence[str]) -> str:
    """A table in LaTeX; a sweep's own one as a paper has it, without what is the same in every row."""
    if table.experiment.startswith(SWEEPS):
        return PaperTable().latex(table, bibtex)
    return to_latex(page(table), bibtex)


def _picture(table: Table, format: str, bare: bool = False) -> bytes:
    from repro.reports.figures.figure import draw  # imported late: matplotlib takes a second

    return draw(table, format, bare)
