"""Tables in LaTeX, for a document that loads `booktabs`.

Owns this format and its escaping. `layout` owns the text of cells and notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from repro.reports.formats.layout import Grid, Heading, Page

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


def to_latex(page: Page, bibtex: Sequence[str]) -> str:
    """A `table` float with its tabulars and notes; the BibTeX follows in comments."""
    label = page.experiment.replace("/", "-")
    lines = [
        r"% needs \usepackage{booktabs,textcomp}",
        r"\begin{table}",
        r"\centering\small\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{latex(page.title)}}}\label{{tab:{label}}}",
        *_tabular(page.grids[0]),
    ]
    for words in page.grids[1:]:
        lines += [r"\par\medskip", *_tabular(words)]
    lines += [r"\par\smallskip\raggedright\footnotesize"]
    lines += [rf"{latex(line)}\par" for line in page.notes]
    lines += [r"\end{table}", *(f"% {line}".rstrip() for entry in bibtex for line in entry.splitlines())]
    return "\n".join(lines) + "\n"


def _tabular(words: Grid) -> list[str]:
    alignment = words.alignment.replace("p", r"p{0.3\linewidth}")
    lines = [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule"]
    lines.append(_line(map(_over, words.headings)))
    if any(len(heading.parts) > 1 for heading in words.headings):
        lines += [_rules(words.headings), _line(latex(part) for h in words.headings for part in h.parts)]
    return [
        *lines,
        r"\midrule",
        *(_line(map(latex, line)) for line in words.lines),
        r"\bottomrule",
        r"\end{tabular}",
    ]


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _over(heading: Heading) -> str:
    """A heading that spans its columns, with the unit on a second line."""
    words = heading.words.replace(" (", "\n(", 1).split("\n")
    stacked = r"\shortstack{" + r"\\".join(map(latex, words)) + "}"
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
