"""What can be wrong in a table's LaTeX, told without LaTeX: environments, braces, columns, packages."""

from __future__ import annotations

import re
from collections.abc import Iterator

ENVIRONMENT = re.compile(r"\\(begin|end)\{(\w+)\}")
SPAN = re.compile(r"\\multicolumn\{(\d+)\}")
NEEDS = {
    "booktabs": r"\\toprule|\\midrule|\\cmidrule|\\bottomrule",
    "siunitx": r"S\[table-format",
    "array": r">\{\\raggedright",
    "longtable": r"\\begin\{longtable\}|LTcapwidth",
    "adjustbox": r"\\begin\{adjustbox\}",
    "pdflscape": r"\\begin\{landscape\}",
}
RULES = ("\\toprule", "\\midrule", "\\bottomrule", "\\cmidrule", "\\end", "\\caption")
NUMBER = re.compile(r"(\\bfseries )?-?\d+(\.\d+)?(\{.*\})?")


def problems(text: str) -> list[str]:
    """Everything that is wrong with a table's file."""
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    return [*_packages(text, lines), *_nesting(lines), *_braces(lines), *_tabulars(lines)]


def tabulars(text: str) -> list[tuple[list[str], list[str]]]:
    """The columns' letters and the rows of each tabular or longtable of a file."""
    found: list[tuple[list[str], list[str]]] = []
    inside = False
    for line in text.splitlines():
        if start := re.match(r"\\begin\{(?:tabular|longtable)\}\{(.*)\}$", line):
            found.append((letters(start[1]), []))
            inside = True
        elif line in (r"\end{tabular}", r"\end{longtable}"):
            inside = False
        elif inside and line.endswith(r"\\") and not line.startswith(RULES):
            found[-1][1].append(line.removesuffix(r"\\").strip())
    return found


def letters(preamble: str) -> list[str]:
    """The columns of a preamble, each with its options."""
    found, rest = [], preamble
    while rest:
        if rest.startswith(">{"):
            rest = rest[_closing(rest, 1) + 1 :]
            continue
        end = 1
        if rest[end : end + 1] == "[":
            depth = 0
            while rest[end] != "]" or depth:
                depth += {"{": 1, "}": -1}.get(rest[end], 0)
                end += 1
            end += 1
        elif rest[0] == "p":
            end = _closing(rest, 1) + 1
        found.append(rest[:end])
        rest = rest[end:]
    return found


def cells(row: str) -> list[str]:
    """A row's cells."""
    return [cell.strip() for cell in re.split(r"(?<!\\)&", row)]


def _closing(text: str, start: int) -> int:
    depth = 0
    for i in range(start, len(text)):
        if text[i - 1] != "\\":
            depth += {"{": 1, "}": -1}.get(text[i], 0)
        if not depth:
            return i
    raise AssertionError(f"{text!r} has an open brace")


def _packages(text: str, lines: list[str]) -> Iterator[str]:
    named = re.match(r"% needs \\usepackage\{([\w,]+)\}\n", text)
    if named is None:
        yield "the first line does not name the packages"
        return
    body = "\n".join(lines)
    for package, pattern in NEEDS.items():
        if bool(re.search(pattern, body)) and package not in named[1].split(","):
            yield f"{package} is not named"


def _nesting(lines: list[str]) -> Iterator[str]:
    open_: list[str] = []
    for kind, name in ENVIRONMENT.findall("\n".join(lines)):
        if kind == "begin":
            open_.append(name)
        elif not open_ or open_.pop() != name:
            yield f"{name} ends where it is not open"
    if open_:
        yield f"{', '.join(open_)} not ended"


def _braces(lines: list[str]) -> Iterator[str]:
    body = re.sub(r"\\[\\{}]", "", "\n".join(lines))
    if body.count("{") != body.count("}"):
        yield "braces do not match"


def _tabulars(lines: list[str]) -> Iterator[str]:
    for columns, rows in tabulars("\n".join(lines)):
        for row in rows:
            own = cells(row)
            spans = [int(found[1]) if (found := SPAN.match(cell)) else 1 for cell in own]
            if sum(spans) != len(columns):
                yield f"{sum(spans)} cells for {len(columns)} columns: {row}"
                continue
            if any(SPAN.match(cell) for cell in own):
                continue
            for cell, column in zip(own, columns, strict=True):
                text = re.fullmatch(r"\{.*\}", cell)
                if column.startswith("S") and not text and not NUMBER.fullmatch(cell):
                    yield f"{cell!r} is neither a number nor in braces: {row}"
