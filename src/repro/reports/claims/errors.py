"""Errors of the predicted values of a paper, over all our tables.

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
from repro.reports.files import ALTERED, path_of, written
from repro.reports.reference.reference import PublishedCell, find

MISS = 0.25
"""Relative error above which a prediction needs a reason."""

UNEXPLAINED = "not explained"


@dataclass(frozen=True)
class Compared:
    """A published cell compared with one of our values.

    Attributes:
        table: experiment of the table.
        line: line of that table's CSV file.
        reason: why the prediction misses; "" if it does not.
    """

    table: str
    line: Line
    reason: str

    @property
    def ratio(self) -> float:
        """Our value divided by the published one."""
        return float(self.line["ratio"])

    @property
    def error(self) -> float:
        """Absolute relative error."""
        return abs(self.ratio - 1)


@dataclass(frozen=True)
class Report:
    """All comparisons of a paper's tables.

    Attributes:
        paper: its name in `cells.csv`.
        predicted: the predictions, worst first.
        fitted: number of further values that were used in a fit or determined by one.
        bounds: number of further values for which only a bound is published.
        absent: number of further values that we do not have.
    """

    paper: str
    predicted: tuple[Compared, ...]
    fitted: int
    bounds: int
    absent: int

    @property
    def misses(self) -> list[Compared]:
        """Predictions whose error needs a reason."""
        return [each for each in self.predicted if each.error > MISS]


def read_reasons(path: Path, cells: Mapping[str, PublishedCell]) -> dict[str, str]:
    """Reasons of misses, by patterns of published cells' ids (`edgellm.table4.*.draft`).

    Raises:
        InputError: the file does not map strings to strings, or a pattern matches no published cell.
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

    If a prose claim is also compared in a table, only the table counts.

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
    """Every line of every table's CSV file below a folder, with the table's name.

    Tables of experiments with changed settings are left out.
    """
    for name in written(folder):
        if ALTERED not in name:
            for line in read_table(path_of(folder, name, "csv")):
                yield name, line


def _paper(line: Line, cells: Mapping[str, PublishedCell]) -> str:
    return cells[line["reference"]].paper if line["reference"] in cells else ""


def _reason(line: Line, reasons: Mapping[str, str]) -> str:
    """Reason of the longest pattern that matches; "" if the prediction is not a miss."""
    if abs(float(line["ratio"]) - 1) <= MISS:
        return ""
    fitting = [pattern for pattern in reasons if fnmatchcase(line["reference"], pattern)]
    return reasons[max(fitting, key=len)] if fitting else UNEXPLAINED
