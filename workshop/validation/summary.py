"""What the emulator gets right and wrong, by the validations' tables: a page, and a block of two more.

Owns which lines of which tables are shown. Must not know how they were made.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from repro.core.errors import InputError
from repro.records.record import write_atomically
from repro.reports.formats.render import markdown_table
from repro.reports.marked_block import fill_block
from workshop.validation import papers
from workshop.validation.phones import page as phones
from workshop.validation.this_machine import page as this_machine

PAGE, README, ALL_SETS = Path("docs/emulator.md"), Path("README.md"), "accuracy.md"
"""Pages with a block, and the page of all sets in the folder of the validations."""

COMMAND = "python -m workshop.validation summary"
BLOCK = "accuracy"
AIM = 15.0
"""Percent of median error up to which a line counts as right."""

ENOUGH = 20
"""Values below which a median says little."""

SHOWN = re.compile(rf"{phones.NOBODY}|2 rows of the chip|^all\b|^llama\.cpp")
"""Names of the sets that docs/emulator.md shows if they have enough values."""

VERDICTS = ("right", "no better than the rule", "wrong", "few values")

LEFT_OUT = (phones.RESIDUALS,)
"""Lines of the phones' table that are no predictions, or of rows that a fit saw."""

Line = Mapping[str, str]


@dataclass(frozen=True)
class AccuracyLine:
    """Errors of one set of predictions, in percent.

    Attributes:
        against: what they are held against.
        cells: which ones.
        n: how many.
        median: the median error.
        p90: its 90th percentile.
        rule: median error of a rule that knows no engine; None without one.
        noise: median error of the same cells measured twice; 0 if nobody measured them twice.
    """

    against: str
    cells: str
    n: int
    median: float
    p90: float
    rule: float | None
    noise: float = 0.0

    @property
    def verdict(self) -> str:
        """Whether the median error is small, beyond noise, and smaller than the rule's; of enough values."""
        right, same, wrong, few = VERDICTS
        if self.n < ENOUGH:
            return few
        if self.median - self.noise > AIM:
            return wrong
        return same if self.rule is not None and self.median >= self.rule else right


def _phone(line: Line) -> AccuracyLine | None:
    if any(part in line["rows"] for part in LEFT_OUT):
        return None
    rules = [float(line[name]) for name in ("bytes: median, %", "operations: median, %")]
    cells = f"{line['of']}: {line['rows']}"
    errors = float(line["median error, %"]), float(line["p90, %"])
    return AccuracyLine("phones and boards", cells, int(line["n"]), *errors, min(rules))


def _paper(line: Line) -> AccuracyLine:
    errors = float(line["median error, %"]), float(line["p90, %"])
    rule = float(line["trivial: median, %"]) if line["trivial: median, %"] else None
    return AccuracyLine("papers' baselines, left out", line["cells"], int(line["n"]), *errors, rule)


def _here(line: Line) -> AccuracyLine:
    errors = float(line["median error, %"]), float(line["p90, %"])
    rule, noise = float(line["without an engine: median, %"]), float(line["null arm: median, %"])
    return AccuracyLine("this machine", line["cells"], int(line["n"]), *errors, rule, noise)


@dataclass(frozen=True)
class ValidationTable:
    """A validation's table.csv: its folder, columns, command, and how a line of predictions is read."""

    folder: str
    headings: tuple[str, ...]
    command: str
    read: Callable[[Line], AccuracyLine | None]

    def lines(self, results: Path) -> list[AccuracyLine] | None:
        """The lines with predictions; None if there is no table, or one of other columns."""
        path = results / self.folder / "table.csv"
        if not path.is_file():
            return None
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != self.headings:
                return None
            found = (self.read(line) for line in reader if int(line["n"]))
            return [line for line in found if line]


TABLES = (
    ValidationTable("phones", phones.HEADINGS, phones.COMMAND, _phone),
    ValidationTable("this_machine", this_machine.HEADINGS, this_machine.COMMAND, _here),
    ValidationTable("papers", papers.HEADINGS, papers.COMMAND, _paper),
)


def all_sets(results: Path) -> str:
    """The page of the folder of the validations: every set of predictions, and where they are from.

    Args:
        results: that folder.
    """
    known = {table: table.lines(results) for table in TABLES}
    lines = [line for found in known.values() for line in found or ()]
    title = ["# How far off the emulator is", "", f"Made by `{COMMAND}` from the tables of this folder.", ""]
    return "\n".join([*title, *_counts(lines), _table(lines), *_absent(known), ""])


def main_sets(results: Path) -> str:
    """The block of docs/emulator.md: how many sets come out right, and the main ones."""
    lines = [line for table in TABLES for line in table.lines(results) or ()]
    shown = [line for line in lines if line.n >= ENOUGH and SHOWN.search(line.cells)]
    return "\n".join([*_counts(lines), _table(shown)]).rstrip()


def _counts(lines: Sequence[AccuracyLine]) -> Iterator[str]:
    counted = ", ".join(f"{sum(line.verdict == name for line in lines)} {name}" for name in VERDICTS)
    yield f"Of {len(lines)} sets of predictions that no fit saw: {counted}. *Right* is a median error of at"
    yield f"most {AIM:.0f}%, beyond the noise where that was measured, and below the rule's; *few values*"
    yield f"are fewer than {ENOUGH}. Sets overlap: those of a machine or paper are parts of its first line."
    yield ""


def _table(lines: Sequence[AccuracyLine]) -> str:
    rows = [
        (
            *(line.against, line.cells, line.n, f"{line.median:.1f}%", f"{line.p90:.1f}%"),
            "" if line.rule is None else f"{line.rule:.1f}%",
            f"{line.noise:.1f}%" if line.noise else "",
            line.verdict,
        )
        for line in lines
    ]
    headings = ("held against", "cells", "n", "median error", "90% below", "the rule", "noise", "")
    return markdown_table(headings, rows) + "\n"


def _absent(known: Mapping[ValidationTable, Sequence[AccuracyLine] | None]) -> Iterator[str]:
    for table, found in known.items():
        where = f"`results/validation/{table.folder}`"
        if found is None:
            yield f"- {where} is not there, or of an older form; `{table.command}` makes it."
        else:
            yield f"- {where}, made by `{table.command}`."


def in_short(results: Path) -> str:
    """README's sentence: how far off decoding is on chips that nobody measured.

    Raises:
        InputError: there is no table of phones.
    """
    known = {line.cells: line for line in TABLES[0].lines(results) or ()}
    if not known:
        raise InputError(f"{results / TABLES[0].folder} has no table; `{TABLES[0].command}` makes it")
    said = []
    for plural in phones.MACHINES.values():
        line = known.get(f"{phones.NAMES['decode']}: {phones.NOBODY}, {plural}")
        if line is None or line.n < ENOUGH:
            continue
        said.append(
            f"{line.median:.0f}% on {plural} ({line.n} rates; scaling the nearest row: {line.rule:.0f}%)"
        )
    text = (
        f"How far emulated speeds are off: on {phones.NOBODY}, in a format that others ran elsewhere, "
        f"decoding by {', '.join(said)} in the median; "
        "[docs/emulator.md](docs/emulator.md#how-far-off-it-is) has more."
    )
    return fill(text, 120, break_on_hyphens=False, break_long_words=False)


def write_accuracy(results: Path, root: Path) -> list[Path]:
    """Write the page of all sets, and the blocks into the pages below `root`; return the pages.

    Raises:
        InputError: a page has no such block, or there is no table of phones.
    """
    pages = {PAGE: main_sets(results), README: in_short(results)}
    for page, content in pages.items():
        text = (root / page).read_text(encoding="utf-8")
        write_atomically(root / page, fill_block(text, BLOCK, content, page.name))
    write_atomically(results / ALL_SETS, all_sets(results))
    return [results / ALL_SETS, *(root / page for page in pages)]
