"""A table for a paper: chosen rows and columns in one float, its `.bib`, and its figure without title.

Owns the choice and this form of LaTeX; `latex` owns the form in which everything is shown, over pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import wrap

from repro.core.errors import InputError
from repro.core.registry import require_choice, unknown
from repro.reports.files import PICTURES, write_files
from repro.reports.formats.columns import PrintedColumn, breakable, fitted, latex
from repro.reports.formats.latex import to_latex
from repro.reports.formats.layout import (
    UNITS,
    UNVARIED,
    Grid,
    grid,
    interval_line,
    own_words,
    page,
    shared_marks,
)
from repro.reports.reference.bibliography import citations
from repro.reports.tables.table import MARKS, Table

ONE_COLUMN, TWO_COLUMNS = 345.0, 252.0
"""Points of the text of an `article`, and of a column of a page with two."""

SIZES = {"footnotesize": (4.25, 6.0), "scriptsize": (3.98, 4.0)}
"""Points of a digit in each size, and between two columns."""

NARROW, WIDE = ".,:;[]()'|!ijlt ", "mwMW"
STYLES = ("float", "full")
BEST = f" {MARKS['best'][0]}"


@dataclass(frozen=True)
class PaperTable:
    """What of a table a paper shows.

    Attributes:
        columns: keys of columns, in this order; all if empty.
        rows: ids or printed names of rows, in this order; all if empty.
        intervals: whether values have their intervals and bands.
        width: points that there are.
        style: `float`: one float with a caption in words, its other notes as comments; `full`: all tables and
            notes, over as many floats as they need.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    intervals: bool = True
    width: float = ONE_COLUMN
    style: str = "float"

    def write(self, table: Table, folder: Path, bibliography: dict[str, str]) -> dict[str, Path]:
        """Write `paper.tex`, `paper.bib` and the figure to the place in a folder; returns their paths.

        Raises:
            InputError: there is no such row or column, or the table is wider than the paper's column.
        """
        bibtex = citations(table.papers, bibliography)
        shown = self.chosen(table)
        text = to_latex(page(shown), ()) if self.style == "full" else self.latex(shown)
        # BibTeX has no comments: an @ of the command, which paper.tex names, would begin an entry here.
        bib = f"Figures of commit {', '.join(table.commits)}.\n\n" + "\n\n".join(bibtex) + "\n"
        files: dict[str, str | bytes | Callable[[], str | bytes]] = {"paper.tex": text, "paper.bib": bib}
        return write_files(table.experiment, folder, files | self._figures(table))

    def _figures(self, table: Table) -> dict[str, str | bytes | Callable[[], str | bytes]]:
        """What draws the figure of the chosen rows and columns, by file; empty if these have none."""
        chosen = replace(self, style="full").chosen(table)
        keys, figure = [column.key for column in chosen.columns], table.figure
        columns = tuple(key for key in figure.columns if key in keys) if figure else ()
        if not figure or not columns or (figure.kind == "curves" and figure.x not in keys):
            return {}
        from repro.reports.figures.figure import draw  # late: matplotlib takes a second

        chosen = replace(chosen, figure=replace(figure, columns=columns))
        return {f"paper.{format}": partial(draw, chosen, format, bare=True) for format in PICTURES}

    def chosen(self, table: Table) -> Table:
        """The table with these rows and columns, and intervals if they are wanted.

        A float without named columns leaves out those that are the same in every row, which a footnote says,
        and the last ones if there is no room for them.
        """
        keys = [column.key for column in table.columns]
        places = [_place("column", key, keys) for key in self.columns] or [*range(len(keys))]
        ids, names = [row.id for row in table.rows], [row.name for row in table.rows]
        at = [names.index(row) if row in names else _place("row", row, ids) for row in self.rows]
        rows = [table.rows[i] for i in at or range(len(ids))]
        if not self.intervals:
            rows = [
                replace(r, entries=tuple(replace(e, spread=None, band=None) for e in r.entries)) for r in rows
            ]
        table = replace(table, rows=tuple(rows))
        if self.columns or self.style == "full":
            return _with_columns(table, places)
        same = {i: words for i in places if (words := _in_every_row(table, i))}
        kept = [i for i in places if i not in same]
        while len(kept) > 1 and self._form(grid(_with_columns(table, kept))) is None:
            kept.pop()
        left = [table.columns[i].heading for i in places if i not in {*same, *kept}]
        said = [f"In every row: {', '.join(same.values())}."] if same else []
        said += [f"Left out, to fit {self.width:.0f} points: {', '.join(left)}."] if left else []
        return replace(_with_columns(table, kept), footnotes=(*table.footnotes, *said))

    def latex(self, table: Table) -> str:
        """One float: caption, rules, numbers aligned, the best ones bold, how figures were made below.

        Raises:
            InputError: the table is wider than `width` in small print with turned headings.
        """
        words = grid(table)
        form = self._form(words)
        if form is None:
            keys = ", ".join(column.key for column in table.columns)
            raise InputError(
                f"{keys} do not fit {self.width:.0f} points in small print; choose fewer with --columns, or "
                "leave intervals out with --no-intervals"
            )
        size, turned = form
        unmarked = tuple(tuple(text.removesuffix(BEST) for text in line) for line in words.lines)
        columns = fitted(replace(words, lines=unmarked), float("inf"))
        heads = " & ".join(_heading(name, turned) for name in _names(words))
        lines = [
            " & ".join(_cell(column, text) for column, text in zip(columns, line, strict=True)) + r" \\"
            for line in words.lines
        ]
        below = " ".join(_below(table))
        packages = ["booktabs", "siunitx", "textcomp", *(["graphicx"] if turned else [])]
        notes = [f"% {line}" for note in page(table).notes for line in wrap(note, 110)]
        return (
            "\n".join(
                [
                    rf"% needs \usepackage{{{','.join(packages)}}}",
                    r"% cite with \bibliography{paper}",
                    r"\begin{table}",
                    rf"\centering\{size}\setlength{{\tabcolsep}}{{{SIZES[size][1] / 2:g}pt}}",
                    r"\sisetup{detect-weight=true}",
                    rf"\caption{{{breakable(table.caption)}}}",
                    rf"\label{{tab:{table.experiment.replace('/', '-')}}}",
                    rf"\begin{{tabular}}{{{''.join(column.form for column in columns)}}}",
                    r"\toprule",
                    rf"{heads} \\",
                    r"\midrule",
                    *lines,
                    r"\bottomrule",
                    r"\end{tabular}",
                    *([rf"\par\smallskip\raggedright {breakable(below)}\par"] if below else []),
                    r"\end{table}",
                    *notes,
                ]
            )
            + "\n"
        )

    def _form(self, words: Grid) -> tuple[str, bool] | None:
        """The largest print that fits, and whether its headings are turned; `None` if none does."""
        forms = ((size, turned) for size in SIZES for turned in (False, True))
        return next((form for form in forms if _width(words, *form) <= self.width), None)


def paper_table(
    columns: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    no_intervals: bool = False,
    two_column: bool = False,
    style: str | None = None,
    paper: bool = False,
) -> PaperTable | None:
    """What the command's arguments ask for; `None` without any. `paper` alone asks for all as it is.

    Raises:
        InputError: there is no such style.
    """
    if style is not None:
        require_choice("--style", style, STYLES)
    if not (columns or rows or no_intervals or two_column or style or paper):
        return None
    width = TWO_COLUMNS if two_column else ONE_COLUMN
    return PaperTable(tuple(columns or ()), tuple(rows or ()), not no_intervals, width, style or STYLES[0])


def _place(what: str, name: str, names: Sequence[str]) -> int:
    if name not in names:
        raise InputError(unknown(what, name, names))
    return names.index(name)


def _with_columns(table: Table, places: Sequence[int]) -> Table:
    rows = tuple(replace(row, entries=tuple(row.entries[i] for i in places)) for row in table.rows)
    return replace(table, rows=rows, columns=tuple(table.columns[i] for i in places))


def _in_every_row(table: Table, place: int) -> str:
    """A column's heading with its value, if that is the same in all of at least `UNVARIED` rows; else ""."""
    column = table.columns[place]
    words = {own_words(row.entries[place], column, tuple(MARKS)) for row in table.rows}
    if (
        len(table.rows) < UNVARIED
        or len(words) > 1
        or any(row.entries[place].published for row in table.rows)
    ):
        return ""
    return f"{column.heading} {words.pop()} {UNITS.get(column.unit, column.unit)}".strip()


def _cell(column: PrintedColumn, text: str) -> str:
    """A cell's LaTeX; the best value of its column is bold in place of its sign."""
    plain = text.removesuffix(BEST)
    return (r"\bfseries " if plain != text else "") + column.cell(plain)


def _names(words: Grid) -> list[str]:
    return [name for heading in words.headings for name in heading.flat]


def _heading(name: str, turned: bool) -> str:
    """A column's heading, each word on a line of its own, or turned by 90 degrees."""
    if turned:
        return rf"\multicolumn{{1}}{{l}}{{\rotatebox{{90}}{{{latex(name)}}}}}"
    stacked = r"\\".join(map(latex, _stacked(name)))
    return rf"\multicolumn{{1}}{{c}}{{\shortstack{{{stacked}}}}}"


def _stacked(name: str) -> list[str]:
    first, bracket, unit = name.partition(" (")
    return [*first.split(), *([f"({unit}"] if bracket else [])] or [""]


def _width(words: Grid, size: str, turned: bool) -> float:
    """Estimated points of the table."""
    digit, gap = SIZES[size]
    total = 0.0
    for i, name in enumerate(_names(words)):
        heads = [2 * digit] if turned else [_length(part, digit) for part in _stacked(name)]
        total += gap + max(*heads, *(_length(line[i].removesuffix(BEST), digit) for line in words.lines))
    return total


def _length(text: str, digit: float) -> float:
    """Estimated points of a text, by its letters: narrow, wide, capitals and signs, others."""
    return sum(
        digit * (0.56 if c in NARROW else 1.65 if c in WIDE else 1.4 if c.isupper() or ord(c) > 126 else 1.04)
        for c in text
    )


def _below(table: Table) -> list[str]:
    """How figures were made, what brackets and signs mean: what a reader of the float alone must know."""
    used = {mark for row in table.rows for entry in row.entries for mark in entry.marks}
    shared = shared_marks(table)
    bold = ["Bold: best of its column."] if "best" in used else []
    used -= {"best"}
    legend = [f"{MARKS[mark][0]} {MARKS[mark][1]}." for mark in MARKS if mark in used and mark not in shared]
    every = [note for note in table.footnotes if note.startswith("In every row: ")]
    return [*every, *([table.how_made] if table.how_made else []), *interval_line(table), *bold, *legend]
