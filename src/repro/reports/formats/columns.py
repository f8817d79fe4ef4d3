"""Columns of a table in LaTeX: how wide they are, how their cells are set, and what is escaped.

Owns the estimate of widths. Must not know pages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

from repro.reports.formats.layout import Grid

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


def latex(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return "".join(ESCAPES.get(character, character) for character in text)


BREAKS = re.compile(r"(/|=|,|@|\\_|(?<=[a-z0-9])\.(?=[a-z0-9]*[a-z]))(?=\S)")
"""Where a long word may be broken: in paths, commands and ids of published values, but not in a number."""


def breakable(text: str) -> str:
    """Text escaped, with places where paths and commands may be broken."""
    return BREAKS.sub(r"\1\\allowbreak{}", latex(text))


LETTER, GAP = 4.4, 6.0
"""Points of a character of \\footnotesize, and between two columns."""

NARROW = 66.0
"""Points below which a column of text is not broken into lines."""

NUMBER = re.compile(r"(?P<sign>-?)(?P<whole>\d+)(?:\.(?P<part>\d+))?(?P<rest>( .*)?)")
"""A number, and what follows it: its interval and marks."""


@dataclass(frozen=True)
class PrintedColumn:
    """A column as LaTeX sets it.

    Attributes:
        form: its letter in the table's preamble.
        wide: points.
        wraps: whether its cells may be broken into lines.
        aligned: whether its numbers are aligned by siunitx.
    """

    form: str
    wide: float
    wraps: bool = False
    aligned: bool = False

    @property
    def room(self) -> float:
        """Points with the gap beside it."""
        return self.wide + GAP

    def lines(self, text: str) -> int:
        """Estimated lines of a cell."""
        return max(1, ceil(len(text) * LETTER / self.wide)) if self.wraps else 1

    def cell(self, text: str) -> str:
        """A cell's text; in an aligned column what is no number is in braces."""
        if not self.aligned:
            return breakable(text) if self.wraps else latex(text)
        found = NUMBER.fullmatch(text)
        if found is None:
            return f"{{{latex(text)}}}"
        rest = found["rest"]
        return text.removesuffix(rest) + _after(rest) if rest else text


def least(words: Grid) -> list[float]:
    """Points that each column needs with the gap beside it, text broken into lines."""
    broken = [letter != "r" for letter in words.alignment]
    wide = [min(w, NARROW) if b else w for w, b in zip(_cells(words), broken, strict=True)]
    return [w + GAP for w in _with_headings(words, wide)]


def fitted(words: Grid, room: float) -> tuple[PrintedColumn, ...]:
    """The columns; those of long text are broken into lines if the table is wider than `room` otherwise."""
    whole = _with_headings(words, _cells(words))
    over = sum(whole) + GAP * len(whole) - room
    long = [i for i, letter in enumerate(words.alignment) if letter != "r" and whole[i] > NARROW]
    slack = sum(whole[i] - NARROW for i in long)
    columns = []
    for i, (letter, wide) in enumerate(zip(words.alignment, whole, strict=True)):
        if over > 0 and i in long:
            narrow = wide - (wide - NARROW) * min(1.0, over / slack)
            form = rf">{{\raggedright\arraybackslash}}p{{{narrow:.0f}pt}}"
            columns.append(PrintedColumn(form, narrow, wraps=True))
        elif letter == "r" and (form := _number_format([line[i] for line in words.lines])):
            columns.append(PrintedColumn(form, wide, aligned=True))
        else:
            columns.append(PrintedColumn("r" if letter == "r" else "l", wide))
    return tuple(columns)


def _cells(words: Grid) -> list[float]:
    """Points of the longest cell of each column."""
    return [
        LETTER * max((len(line[i]) for line in words.lines), default=0) for i in range(len(words.alignment))
    ]


def _with_headings(words: Grid, wide: Sequence[float]) -> list[float]:
    """The widths, with room for the longest word of each heading."""
    found = list(wide)
    ends = list(accumulate(len(heading.parts) for heading in words.headings))
    for heading, end in zip(words.headings, ends, strict=True):
        own = range(end - len(heading.parts), end)
        for i, part in zip(own, heading.parts, strict=True):
            found[i] = max(found[i], LETTER * len(part))
        lacking = LETTER * heading.least - sum(found[i] for i in own) - GAP * (len(own) - 1)
        for i in own:
            found[i] += max(lacking, 0.0) / len(own)
    return found


def _number_format(cells: Sequence[str]) -> str:
    """siunitx's column for these cells; "" if none is a number."""
    numbers = [found for found in map(NUMBER.fullmatch, cells) if found]
    if not numbers:
        return ""
    sign = "-" if any(found["sign"] for found in numbers) else ""
    whole, part = (max(len(found[name] or "") for found in numbers) for name in ("whole", "part"))
    rest = max((found["rest"] for found in numbers), key=len)
    after = f",table-space-text-post={_after(rest)}" if rest else ""
    return f"S[table-format={sign}{whole}.{part}{after}]"


def _after(rest: str) -> str:
    """What follows a number, in braces, since it is text."""
    return f"{{~{latex(rest.strip())}}}"
