"""Write what README.md and docs/*.md show of results/ and of the code, between markers.

python scripts/pages.py
python scripts/pages.py --results outputs/results --pages FOLDER

Owns which part is shown where. Must not know how the figures come about.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from repro.core.errors import InputError
from repro.core.paths import conf_dir, project_root
from repro.core.reading import read_mapping
from repro.records.record import write_atomically
from repro.reports.advice import compare_block, readme_block
from repro.reports.fidelity.fidelity_page import FIDELITY_FILE as FIDELITY
from repro.reports.fidelity.fidelity_page import IN_SHORT
from repro.reports.marked_block import fill_block
from scripts.deviations import deviations_by_page

QUICKSTART, SPECIFICATION = Path("quickstart/table.md"), Path("experiment/quickstart.yaml")
COLUMNS = (
    "method",
    "Acceptance length",
    "Decode",
    "Speedup over Flash-AR",
    "Whole answer",
    "Rouge-L",
    "Energy of the whole answer",
)
"""Beginnings of the headings that README shows of the quickstart."""
NOTE_GROUPS = (("Emulated on ", "All our figures: "), ("x ", "[low, high]"), ("A figure rests on", "n: "))
"""Beginnings of the notes that README sets in one line each: stand-ins, signs, numbers."""


def quickstart(results: Path) -> str:
    """The quickstart's heading, some of its columns, and the notes that are not its specification's own.

    Raises:
        InputError: the table is not there, or lacks a column.
    """
    page = _read(results / QUICKSTART, "python -m repro experiment=quickstart results=results")
    lines = page.partition("\n```bibtex")[0].strip().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    end = next(i for i in range(first, len(lines)) if not lines[i])
    rows = [line.strip("| ").split(" | ") for line in lines[first:end]]
    chosen = [i for i, heading in enumerate(rows[0]) if heading.startswith(COLUMNS)]
    if len(chosen) != len(COLUMNS):
        raise InputError(
            f"{results / QUICKSTART} has the columns {', '.join(rows[0])}; choose {COLUMNS} anew"
        )
    table = [f"| {' | '.join(row[i] for i in chosen)} |" for row in rows]
    specified = read_mapping(conf_dir() / SPECIFICATION)["table"]["notes"]
    notes = [line[2:] for line in lines[end:] if line.startswith("- ") and line[2:] not in specified]
    return "\n".join([*lines[:first], *table, "", *(f"- {note}" for note in grouped(notes))])


def grouped(notes: Sequence[str]) -> Iterator[str]:
    """The notes in their order, those of one of `NOTE_GROUPS` as one."""
    for starts, group in groupby(notes, key=lambda note: next(filter(note.startswith, NOTE_GROUPS), None)):
        lines = list(group)
        yield from [" ".join(lines)] if starts else lines


def outcome(results: Path) -> str:
    """What came out of each paper, as the page over all papers sums it up.

    Raises:
        InputError: the page is not there.
    """
    page = _read(results / FIDELITY, "repro errors --results results")
    return page.partition(f"## {IN_SHORT}\n")[2].partition("\n## ")[0].strip()


def _read(path: Path, command: str) -> str:
    if not path.is_file():
        raise InputError(f"there is no {path}; make it with `{command}`")
    return path.read_text(encoding="utf-8")


def blocks(results: Path) -> Iterator[tuple[str, str, str]]:
    """Page, name and content of each block.

    Raises:
        InputError: what a block shows is not there.
    """
    yield "README.md", "quickstart", quickstart(results)
    yield "README.md", "outcome", outcome(results)
    yield "README.md", "advice", readme_block(results)
    yield "docs/compare.md", "advice", compare_block(results)
    for page, content in deviations_by_page(project_root()).items():
        yield page, "deviations", content


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=project_root() / "results")
    parser.add_argument("--pages", type=Path, default=project_root(), help="folder of README.md and docs")
    options = parser.parse_args(arguments)
    try:
        for page, name, content in blocks(options.results):
            path = options.pages / page
            text = fill_block(path.read_text(encoding="utf-8"), name, content, page)
            write_atomically(path, text)
    except (InputError, OSError) as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
