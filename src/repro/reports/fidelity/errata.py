"""The page of numbers of a paper that cannot all hold, because the same paper prints others.

Owns how `conf/reference/errata.csv` is read: a published value stands there as its id in braces, with `:high`
for the upper end of a range. Must not know figures of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from repro.core.reading import csv_reader
from repro.records.record import write_atomically
from repro.reports.fidelity.marked import FigureSources
from repro.reports.reference.reference import PublishedCell

ERRATA_FILE = "errata.md"
PREFACE = """# Where the papers contradict themselves

Made by `repro errors --results results` from `conf/reference/errata.csv` and the published values that it
names; nothing is edited by hand. Listed are numbers that cannot all hold, because the same paper prints
others. What a paper leaves undefined is on that system's own page in `docs/`.

`conf/reference/contradictions.csv` has those that touch a value of ours: the error pages show beside each
error how far the paper's other number is from the printed one (`floor`). A line with a `proof`, the name of
an entry below, is a printed value that the paper's other numbers exclude: it is `contradicted`, and medians
are given with it, first, and without. No proof are a mean above one of its parts, a number of another
device or model, or of one that is not named, a number of other texts where the quantity depends on them,
one reading of what the paper does not define, and a doubt.
"""
PUBLISHED_VALUE = re.compile(r"\{([\w.]+)(:high)?\}")


@dataclass(frozen=True)
class Erratum:
    """A contradiction: whose, its name, and what it says, with ids in place of published values."""

    paper: str
    entry: str
    says: str


def read_errata(path: Path) -> list[Erratum]:
    """The entries of a file, those of a paper together.

    Raises:
        InputError: it is no CSV file.
    """
    with csv_reader(path) as reader:
        return [Erratum(line["paper"], line["entry"], line["says"]) for line in reader]


def write_errata(
    errata: list[Erratum], cells: Mapping[str, PublishedCell], systems: Mapping[str, str], folder: Path
) -> Path:
    """Write the page, with published values in place of their ids, into a folder; returns its path.

    Args:
        errata: the entries.
        cells: the published values.
        systems: what each paper's system is called, by paper.
        folder: of results.

    Raises:
        InputError: an id is no published value.
    """
    sources = FigureSources(folder, cells)

    def value(match: re.Match[str]) -> str:
        end = " :: high" if match[2] else ""
        return f"{sources.value(f'cell :: {match[1]}{end}'):,.10g}"

    paragraphs = [PREFACE]
    for paper, entries in groupby(errata, lambda erratum: erratum.paper):
        lines = [f"- **{erratum.entry}.** {PUBLISHED_VALUE.sub(value, erratum.says)}" for erratum in entries]
        paragraphs += [f"## {systems[paper]}\n", "\n".join(lines), ""]
    write_atomically(folder / ERRATA_FILE, "\n".join(paragraphs))
    return folder / ERRATA_FILE
