r"""Tables in LaTeX: Styler's rows between booktabs' rules, numbers aligned by siunitx.

A table that is wider than a turned page is divided by its columns; one that is wider than an upright page is
turned, and adjustbox makes it fit. One that is higher than its page is a longtable; in a paper it is several
floats, since a longtable cannot stand in one of two columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from repro.reports.formats.layout import MOST_COLUMNS, Grid, Heading, Page
from repro.reports.tables.table import MARKS

ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textquotesingle{}",
    "—": "---",
    "–": "--",
    "×": r"$\times$",
    "±": r"$\pm$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "§": r"\S{}",
    "★": r"$\star$",
}
BREAK_POINTS = re.compile(r"(/|=|,|@|\\_|(?<=[a-z0-9])\.(?=[a-z0-9]*[a-z]))(?=\S)")
"""Where a long word may be broken: in paths, commands and ids of published values, but not in a number."""

NUMBER_PATTERN = re.compile(r"(?P<sign>-?)(?P<whole>\d+)(?:\.(?P<part>\d+))?(?P<rest>( .*)?)")
"""A number, and what follows it: its interval and marks."""

BEST_SIGN = f" {MARKS['best'][0]}"

HEADING_WIDTH, TEXT_WIDTH = 10, 20
"""Characters of a line of a heading, and of a longer text in a table that is wide."""

UPRIGHT_WIDTH, TURNED_WIDTH = 70, 110
"""Characters in a line of a table that fits an A4 page upright, and turned."""

UPRIGHT_HEIGHT, TURNED_HEIGHT = 50, 26
"""Lines of a table with its notes that fit such a page."""

LETTER_POINTS, LEAST_LETTER_POINTS = 4.4, 3.2
"""Points of a character of footnotesize, and of one that a paper's column makes as narrow as one can read."""

SMALL_TYPE = r"\footnotesize\setlength{\tabcolsep}{3pt}"

PACKAGE_MARKS = {
    "booktabs": r"\toprule",
    "siunitx": "",
    "textcomp": "",
    "array": r">{\raggedright",
    "adjustbox": r"\begin{adjustbox}",
    "longtable": r"\begin{longtable}",
    "pdflscape": r"\begin{landscape}",
}
"""What a table has that needs a package."""


def latex(text: str) -> str:
    """Text as one line with LaTeX's special characters escaped."""
    return "".join(ESCAPES.get(character, character) for character in " ".join(text.splitlines()))


def breakable(text: str) -> str:
    """Text escaped, with places where paths and commands may be broken."""
    return BREAK_POINTS.sub(r"\1\\allowbreak{}", latex(text))


def to_latex(page: Page, comments: Sequence[str], width: float | None = None) -> str:
    """The tables of a page, its notes below the last one, and comments at the end.

    With `width`, the points of a paper's column, they are upright floats with the best values bold.
    """
    part_grids = [part for grid in page.grids for part in _parts(grid, width)]
    label = f"tab:{page.experiment.replace('/', '-')}"
    body: list[str] = []
    for i, part in enumerate(part_grids, 1):
        title = page.title if len(part_grids) == 1 else f"{page.title}, part {i} of {len(part_grids)}"
        notes = page.notes if i == len(part_grids) else ()
        body += _environment(part, breakable(title), label if i == 1 else "", notes, width)
    packages = [name for name, mark in PACKAGE_MARKS.items() if any(mark in line for line in body)]
    comment_lines = [f"% {line}".rstrip() for comment in comments for line in comment.splitlines()]
    return "\n".join([rf"% needs \usepackage{{{','.join(packages)}}}", *body, *comment_lines]) + "\n"


def _parts(grid: Grid, width: float | None) -> list[Grid]:
    """The grid, divided by its columns if it is too wide, in a paper also by its rows if it is too high."""
    widest = TURNED_WIDTH if width is None else width / LEAST_LETTER_POINTS
    part_grids = grid.divide(
        lambda part: len(part.alignment) <= MOST_COLUMNS and sum(_widths(part)) <= widest
    )
    if width is None:
        return part_grids
    rows_per_part = UPRIGHT_HEIGHT - 10
    starts = range(0, max(len(grid.lines), 1), rows_per_part)
    return [replace(part, lines=part.lines[i : i + rows_per_part]) for part in part_grids for i in starts]


def _environment(part: Grid, title: str, label: str, notes: Sequence[str], width: float | None) -> list[str]:
    """A part as a float or a longtable, on an upright page or a turned one."""
    if width is not None:
        return _float(part, title, label, notes, best_in_bold=True)
    widths = _widths(part)
    is_turned = sum(widths) > UPRIGHT_WIDTH
    lines = [
        max(ceil(len(text) / (column_width or 1)) for text, column_width in zip(line, widths, strict=True))
        for line in part.lines
    ]
    lines += [ceil(len(note) / (TURNED_WIDTH if is_turned else UPRIGHT_WIDTH)) for note in notes]
    make_environment = _longtable if sum(lines) > (TURNED_HEIGHT if is_turned else UPRIGHT_HEIGHT) else _float
    environment = make_environment(part, title, label, notes)
    return [r"\begin{landscape}", *environment, r"\end{landscape}"] if is_turned else environment


def _float(part: Grid, title: str, label: str, notes: Sequence[str], best_in_bold: bool = False) -> list[str]:
    return [
        r"\begin{table}",
        rf"\centering{SMALL_TYPE}" + (r"\sisetup{detect-weight=true}" if best_in_bold else ""),
        rf"\caption{{{title}}}" + (rf"\label{{{label}}}" if label else ""),
        r"\begin{adjustbox}{max width=\linewidth}",
        *_tabular(part, best_in_bold),
        r"\end{adjustbox}",
        *_below(notes),
        r"\end{table}",
    ]


def _longtable(part: Grid, title: str, label: str, notes: Sequence[str]) -> list[str]:
    table = _tabular(part, environment="longtable", caption=title, label=label or None)
    return [rf"{{{SMALL_TYPE}\setlength{{\LTcapwidth}}{{\linewidth}}", *table, *_below(notes), "}"]


def _below(notes: Sequence[str]) -> list[str]:
    lines = [rf"{breakable(note)}\par" for note in notes]
    return [r"\par\smallskip\raggedright\noindent", *lines] if lines else []


def _widths(grid: Grid) -> list[int]:
    """Characters of each column; a text has lines of `TEXT_WIDTH` if the table is too wide otherwise."""
    lengths = [max((len(line[i]) for line in grid.lines), default=0) for i in range(len(grid.alignment))]
    heading_widths = [
        max(len(part), ceil(max(map(len, heading.wrap(HEADING_WIDTH))) / len(heading.parts)))
        for heading in grid.headings
        for part in heading.parts
    ]
    full_widths = [max(pair) for pair in zip(lengths, heading_widths, strict=True)]
    if sum(full_widths) <= UPRIGHT_WIDTH:
        return full_widths
    minima = [
        width if letter == "r" else TEXT_WIDTH for width, letter in zip(lengths, grid.alignment, strict=True)
    ]
    return [max(head, min(pair)) for head, *pair in zip(heading_widths, lengths, minima, strict=True)]


def _tabular(grid: Grid, best_in_bold: bool = False, **environment: str | None) -> list[str]:
    """The lines of a tabular, or of another environment; `bold`: the best values, not their sign."""
    from pandas import DataFrame, Index, MultiIndex  # late: it takes half a second, with jinja2

    widths = _widths(grid)
    columns = [[line[i] for line in grid.lines] for i in range(len(widths))]
    if best_in_bold:
        columns = [[text.removesuffix(BEST_SIGN) for text in texts] for texts in columns]
    forms = [_form(*column) for column in zip(columns, widths, grid.alignment, strict=True)]
    cell_rows = [
        [
            (r"\bfseries " if text != full_text else "") + _cell(text, form)
            for text, full_text, form in zip(texts, line, forms, strict=True)
        ]
        for texts, line in zip(zip(*columns, strict=True), grid.lines, strict=True)
    ]
    headings = [_shortstack(heading) for heading in grid.headings for _ in heading.parts]
    subheadings = [latex(part) for heading in grid.headings for part in heading.parts]
    names = MultiIndex.from_arrays([headings, subheadings]) if any(subheadings) else Index(headings)
    style = DataFrame(cell_rows, columns=names).style.hide(axis="index")
    text: str = style.to_latex(
        column_format="".join(forms), hrules=True, siunitx=True, multicol_align="c", **environment
    )
    return text.splitlines()


def _shortstack(heading: Heading) -> str:
    return r"\shortstack{" + r"\\".join(map(latex, heading.wrap(HEADING_WIDTH))) + "}"


def _form(texts: Sequence[str], width: int, letter: str) -> str:
    """A column's letter: numbers are aligned by siunitx, a text that is longer than its column is broken."""
    numbers = [number for number in map(NUMBER_PATTERN.fullmatch, texts) if number]
    if letter != "r":
        is_broken = any(len(text) > width for text in texts)
        return rf">{{\raggedright\arraybackslash}}p{{{LETTER_POINTS * width:.0f}pt}}" if is_broken else "l"
    if not numbers:
        return "r"
    sign = "-" if any(number["sign"] for number in numbers) else ""
    digits, decimals = (max(len(number[name] or "") for number in numbers) for name in ("whole", "part"))
    longest_suffix = max((number["rest"] for number in numbers), key=len)
    suffix = f",table-space-text-post={_suffix(longest_suffix)}" if longest_suffix else ""
    return f"S[table-format={sign}{digits}.{decimals}{suffix}]"


def _cell(text: str, form: str) -> str:
    """A cell's text; in an aligned column what is no number is in braces."""
    if not form.startswith("S"):
        return breakable(text) if "p{" in form else latex(text)
    number = NUMBER_PATTERN.fullmatch(text)
    if number is None:
        return f"{{{latex(text)}}}"
    return text.removesuffix(number["rest"]) + (_suffix(number["rest"]) if number["rest"] else "")


def _suffix(suffix: str) -> str:
    """What follows a number, in braces, since it is text."""
    return f"{{~{latex(suffix.strip())}}}"
