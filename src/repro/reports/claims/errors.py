"""How far a paper's predicted values are off, over all our tables.

Owns what counts as a prediction and as a miss. Reads the tables' CSV files; must not know records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import yaml

from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.reports.claims.claims import CLAIM, Line, read_table
from repro.reports.reference.reference import PublishedCell, find

MISS = 0.25
"""The relative error from which a prediction needs a reason."""

UNEXPLAINED = "not explained"


@dataclass(frozen=True)
class Compared:
    """A published cell beside one of our figures.

    Attributes:
        table: the experiment that shows it.
        line: of that table's CSV.
        reason: why it misses; "" where it does not.
    """

    table: str
    line: Line
    reason: str

    @property
    def ratio(self) -> float:
        """Ours over the published value."""
        return float(self.line["ratio"])

    @property
    def error(self) -> float:
        """Relative, without its sign."""
        return abs(self.ratio - 1)


@dataclass(frozen=True)
class Report:
    """All that a paper's tables compare.

    Attributes:
        paper: by its name in `cells.csv`.
        predicted: the predictions, the worst first.
        fitted: how many more were used in a fit, or determined by one.
        bounds: how many more have a published bound instead of a value.
        absent: how many more have no figure of ours.
    """

    paper: str
    predicted: tuple[Compared, ...]
    fitted: int
    bounds: int
    absent: int

    @property
    def misses(self) -> list[Compared]:
        """Those that need a reason."""
        return [each for each in self.predicted if each.error > MISS]


def read_reasons(path: Path, cells: Mapping[str, PublishedCell]) -> dict[str, str]:
    """Why predictions miss, by patterns of published cells' ids (`edgellm.table4.*.draft`).

    Raises:
        InputError: the file is no mapping of texts, or a pattern fits no published cell.
    """
    reasons = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if not isinstance(reasons, dict) or not all(isinstance(why, str) for why in reasons.values()):
        raise InputError(f"{path.name} must map ids of published cells to sentences")
    for pattern in reasons:
        if not any(fnmatchcase(name, pattern) for name in cells):
            find(cells, pattern)
    return reasons


def report(
    paper: str, folder: Path, cells: Mapping[str, PublishedCell], reasons: Mapping[str, str]
) -> Report:
    """Everything that the tables in a folder compare with a paper.

    A claim of the prose that a table compares as well counts there alone.

    Raises:
        InputError: the paper is unknown, or no table compares anything with it.
    """
    papers = {cell.paper for cell in cells.values()}
    if paper not in papers:
        raise InputError(unknown("paper", paper, papers))
    own = [(name, line) for name, line in _lines(folder) if _paper(line, cells) == paper]
    if not own:
        raise InputError(f"no table in {folder} compares a figure with {paper}; make its tables first")
    in_tables = {line["reference"] for _, line in own if line["column"] != CLAIM}
    once = [(n, x) for n, x in own if x["column"] != CLAIM or x["reference"] not in in_tables]
    figures = [(n, x) for n, x in once if x["ours"] or x.get("ours_low")]
    compared = [(n, x) for n, x in figures if x["ratio"]]
    kept = [(n, x) for n, x in compared if "fitted" not in x["marks"].split()]
    predicted = [Compared(name, line, _reason(line, reasons)) for name, line in kept]
    predicted.sort(key=lambda each: (-each.error, each.line["reference"], each.table, each.line["id"]))
    return Report(
        paper=paper,
        predicted=tuple(predicted),
        fitted=len(compared) - len(kept),
        bounds=len(figures) - len(compared),
        absent=len(once) - len(figures),
    )


def _lines(folder: Path) -> Iterator[tuple[str, Line]]:
    """Every line of every table's CSV below a folder, with the table's name."""
    for path in sorted(folder.rglob("*.csv")):
        for line in read_table(path):
            yield path.relative_to(folder).with_suffix("").as_posix(), line


def _paper(line: Line, cells: Mapping[str, PublishedCell]) -> str:
    return cells[line["reference"]].paper if line["reference"] in cells else ""


def _reason(line: Line, reasons: Mapping[str, str]) -> str:
    """The most particular pattern that fits; of a hit none is asked for."""
    if abs(float(line["ratio"]) - 1) <= MISS:
        return ""
    fitting = [pattern for pattern in reasons if fnmatchcase(line["reference"], pattern)]
    return reasons[max(fitting, key=len)] if fitting else UNEXPLAINED
