"""Tables in LaTeX that fit the text of an A4 page: wide ones sideways or in parts, long ones over pages.

Owns this format, its escaping and where a table goes on a page. `layout` owns the text of cells and notes,
`columns` how wide a column is and how its cells are set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from repro.reports.formats.columns import LETTER, PrintedColumn, breakable, fitted, latex, least
from repro.reports.formats.layout import Grid, Heading, Page
from repro.reports.formats.parts import MOST, divided

UPRIGHT, SIDEWAYS = (325.0, 550.0), (540.0, 320.0)
"""Width and height in points of the text of an `article` on A4, upright and turned; less than there is, 345
by 598, since the widths of columns are estimates."""

LINE, AROUND = 9.8, 60.0
"""Points of a line of \\footnotesize, and of caption, rules and headings."""

PACKAGES = ("booktabs", "siunitx", "textcomp", "array", "longtable", "rotating", "pdflscape")


@dataclass(frozen=True)
class PrintedPart:
    """A table or a part of one, upright or sideways."""

    words: Grid
    columns: tuple[PrintedColumn, ...]
    sideways: bool

    @property
    def width(self) -> float:
        """Estimated width in points."""
        return sum(column.room for column in self.columns)

    @property
    def height(self) -> float:
        """Estimated height in points, without notes."""
        rows = [
            max(c.lines(text) for c, text in zip(self.columns, line, strict=True))
            for line in self.words.lines
        ]
        return AROUND + LINE * sum(rows)


def to_latex(page: Page, bibtex: Sequence[str]) -> str:
    """Floats, or tables over several pages where they are longer than one; notes; the BibTeX in comments."""
    parts = [part for words in page.grids for part in placed(words)]
    lines: list[str] = []
    for i, part in enumerate(parts, 1):
        title = page.title if len(parts) == 1 else f"{page.title}, part {i} of {len(parts)}"
        caption = rf"\caption{{{breakable(title)}}}"
        if i == 1:
            caption += rf"\label{{tab:{page.experiment.replace('/', '-')}}}"
        last = i == len(parts)
        lines += _part(part, caption, page.notes if last else ())
    used = [name for name in PACKAGES if name in ("booktabs", "siunitx", "textcomp") or _needs(name, lines)]
    comments = [f"% {line}".rstrip() for entry in bibtex for line in entry.splitlines()]
    return "\n".join([rf"% needs \usepackage{{{','.join(used)}}}", *lines, *comments]) + "\n"


def _needs(package: str, lines: Sequence[str]) -> bool:
    marks = {
        "array": r">{",
        "longtable": r"{longtable}",
        "rotating": r"{sidewaystable}",
        "pdflscape": r"{landscape}",
    }
    return any(marks[package] in line for line in lines)


def placed(words: Grid) -> list[PrintedPart]:
    """The grid in as few parts as fit a page: upright if turning it would not save one."""
    upright, sideways = (divided(words, partial(_fits, words, room)) for room, _ in (UPRIGHT, SIDEWAYS))
    turned = len(sideways) < len(upright) or any(sum(least(part)) > UPRIGHT[0] for part in upright)
    room = (SIDEWAYS if turned else UPRIGHT)[0]
    return [PrintedPart(part, fitted(part, room), turned) for part in (sideways if turned else upright)]


def _fits(words: Grid, room: float, columns: Sequence[int]) -> bool:
    wide = least(words)
    return len(columns) <= MOST and sum(wide[i] for i in columns) <= room


def _part(part: PrintedPart, caption: str, notes: Sequence[str]) -> list[str]:
    """A float with its notes; a table over several pages, with the notes after it, if that is too high."""
    width, height = SIDEWAYS if part.sideways else UPRIGHT
    below = LINE * sum(1 + len(note) * LETTER // width for note in notes)
    said = [rf"{breakable(note)}\par" for note in notes]
    if part.height + below <= height:
        kind = "sidewaystable" if part.sideways else "table"
        after = [r"\par\smallskip\raggedright", *said] if said else []
        return [
            rf"\begin{{{kind}}}",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            caption,
            rf"\begin{{tabular}}{{{_preamble(part)}}}",
            *_head(part),
            *_rows(part),
            r"\bottomrule",
            r"\end{tabular}",
            *after,
            rf"\end{{{kind}}}",
        ]
    long = [
        r"{\footnotesize\setlength{\tabcolsep}{3pt}\setlength{\LTcapwidth}{\linewidth}",
        rf"\begin{{longtable}}{{{_preamble(part)}}}",
        rf"{caption}\\",
        *_head(part),
        r"\endfirsthead",
        *_head(part),
        r"\endhead",
        r"\bottomrule",
        r"\endfoot",
        *_rows(part),
        r"\end{longtable}",
        *([r"\raggedright\noindent", *said] if said else []),
        "}",
    ]
    return [r"\begin{landscape}", *long, r"\end{landscape}"] if part.sideways else long


def _preamble(part: PrintedPart) -> str:
    return "".join(column.form for column in part.columns)


def _head(part: PrintedPart) -> list[str]:
    headings = part.words.headings
    lines = [
        r"\toprule",
        _line(_over(heading, wide) for heading, wide in zip(headings, _spans(part), strict=True)),
    ]
    if any(len(heading.parts) > 1 for heading in headings):
        under = [rf"\multicolumn{{1}}{{c}}{{{latex(one)}}}" for heading in headings for one in heading.parts]
        lines += [_rules(headings), _line(under)]
    return [*lines, r"\midrule"]


def _spans(part: PrintedPart) -> list[float]:
    """Points of each heading."""
    ends = list(accumulate(len(heading.parts) for heading in part.words.headings))
    return [
        sum(column.wide for column in part.columns[end - len(h.parts) : end])
        for end, h in zip(ends, part.words.headings, strict=True)
    ]


def _rows(part: PrintedPart) -> list[str]:
    return [
        _line(column.cell(text) for column, text in zip(part.columns, line, strict=True))
        for line in part.words.lines
    ]


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _over(heading: Heading, wide: float) -> str:
    """A heading over its columns, broken into lines that are not wider, the unit on a line of its own."""
    stacked = r"\shortstack{" + r"\\".join(map(latex, heading.broken(int(wide / LETTER)))) + "}"
    return rf"\multicolumn{{{len(heading.parts)}}}{{c}}{{{stacked}}}"


def _rules(headings: Sequence[Heading]) -> str:
    """A rule below each heading that spans several columns."""
    rules, at = [], 1
    for heading in headings:
        end = at + len(heading.parts) - 1
        if end > at:
            rules.append(rf"\cmidrule(lr){{{at}-{end}}}")
        at = end + 1
    return "".join(rules)
