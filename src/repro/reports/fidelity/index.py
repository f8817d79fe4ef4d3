"""The README of a folder of results: one row for each artifact of a paper and each further table.

Owns what the rows say. Reads the tables' files and the records' provenance; must not know how they are made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from repro.core.reading import csv_reader
from repro.libraries import pd
from repro.records.record import Record, write_atomically
from repro.records.results import Results
from repro.reports.comparison.frame import median, to_frame
from repro.reports.fidelity.reading import comparisons_in
from repro.reports.files import ALTERED_MARK, is_of, path_of, table_names, validations
from repro.reports.reference.reference import PublishedCell
from repro.reports.tables.how_made import amounts

STAND_IN_WORDS = {
    "proxy": "proxy",
    "costs_only": "costs only",
    "dequantized": "dequantized",
    "matched": "matched",
    "fitted": "fitted",
}
"""Marks that say what stands in for the paper's own models and measurements, with their words."""

PAGE_KINDS = {"claim": "claims", "fact": "facts"}
"""Kinds of pages without cells, by the `column` of their lines."""

HEADINGS = ("artifact", "state", "stands in", "n", "predicted", "median error", "minutes", "command")

REAL_FOLDER, MEASURED_BY = "real", "python -m workshop.benchmarks.pairs"
"""Folder of the page of real runs, which is no table, and the command that makes it."""

PREFACE = """# Results

Everything here is generated, this page too; nothing is edited by hand. Each folder has a table (`table.md`,
`table.csv`), its picture (`figure.png`), and a list of its cells (`members.jsonl`), whose records lie in
`records/`. A value's `cell` in `table.csv` is the beginning of a `key` there;
[docs/tables.md](../docs/tables.md) describes the rest. `repro table NAME --results results --format tex pdf
bib --out FOLDER` makes LaTeX, PDF and BibTeX.

`python -m repro experiment=NAME results=results` runs what has no record yet and writes the table;
`repro table NAME --results results` builds it from its cells alone; `repro check NAME`
computes cells again and compares them.

- state: *from records* (computed with weights), *costs only* (no weights computed), *facts*, *claims*,
  *errors* or *drawn* (no cells), or *absent* and why. *stale* counts figures that an older version of a
  component made, *not run* rows without a cell.
- stands in: *proxy* (a smaller model's weights), *dequantized*, *matched* (draft-target agreement brought to
  the published one), *fitted* (some figures were used in a fit or follow from one).
- predicted, median error: figures that are compared with the paper, not fitted, able to miss and not inside
  a printed range, and the median of their errors, which are relative, or in points of accuracies.
  [fidelity.md](fidelity.md) sums up all papers, with verdicts.
- minutes: the time that the cells took, each on its own; tables share cells.
"""


Row = tuple[str, ...]
"""A row of the index: a name, and what stands under the other headings."""


def write_index(
    results: Results, cells: Mapping[str, PublishedCell], artifacts: Path, folder: Path | None = None
) -> Path:
    """Write `README.md` of results into their folder or another; the same files give the same text.

    `artifacts` lists the papers' figures and tables (`conf/reference/artifacts.csv`).
    """
    with csv_reader(artifacts) as reader:
        entries = list(reader)
    papers = list(dict.fromkeys([a["paper"] for a in entries] + [cell.paper for cell in cells.values()]))
    names = table_names(results.root)
    lines = {name: _lines(results.root, name) for name in names}
    tables = {name: part for name, part in lines.items() if part and "id" in part[0]}  # no page of errors
    compared_frame = to_frame([c for name, part in tables.items() for c in comparisons_in(name, part, cells)])
    frames_by_table = dict(list(compared_frame[compared_frame["can_miss"]].groupby("table")))
    rows = {name: _row(results, name, lines[name], frames_by_table.get(name)) for name in names}
    paragraphs = [PREFACE]
    for paper in papers:
        paper_tables = [name for name in names if name.startswith(f"{paper}/") and ALTERED_MARK not in name]
        if paper_tables:
            absent_rows = _absent(paper, [a for a in entries if a["paper"] == paper], paper_tables)
            paragraphs.append(
                f"## {paper}\n\n{_grid([*absent_rows, *(rows[name] for name in paper_tables)])}"
            )
    other_rows = [
        rows[name] for name in names if name.partition("/")[0] not in papers or ALTERED_MARK in name
    ]
    if other_rows:
        paragraphs.append(f"## Other tables\n\n{_grid(other_rows)}")
    if validation_names := validations(results.root):
        links = "\n".join(f"- [{name}]({name}/table.md)" for name in validation_names)
        paragraphs.append(
            f"## The emulator against measurements (`python -m workshop.validation`)\n\n{links}\n"
        )
    if (results.root / REAL_FOLDER / "README.md").is_file():
        link = f"[{REAL_FOLDER}]({REAL_FOLDER}/README.md)"
        paragraphs.append(f"## On one machine, by wall clock (`{MEASURED_BY}`)\n\n- {link}\n")
    path = (folder or results.root) / "README.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(paragraphs)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_atomically(path, text)
    return path


def _absent(paper: str, artifacts: Sequence[Mapping[str, str]], table_names: Sequence[str]) -> Iterator[Row]:
    """A row for each artifact of a paper without a table; `fig12a` and `fig12_mean` are tables of `fig12`."""
    for artifact in artifacts:
        name, shows = artifact["artifact"], artifact["what_it_shows"]
        if not any(is_of(table.partition("/")[2], name) for table in table_names):
            drawing_match = re.search(r"\b(diagram|pseudocode|example|masking-table|decoder-only)", shows)
            reason = "a diagram or an example" if drawing_match else f"no table of it: {shows}"
            yield f"{paper}/{name}", f"absent: {reason}", *[""] * (len(HEADINGS) - 2)


def _lines(root: Path, name: str) -> list[dict[str, str]]:
    with csv_reader(path_of(root, name, "csv")) as reader:
        return [line for line in reader if line.get("column") != "aside"]


def _row(
    results: Results, name: str, lines: Sequence[Mapping[str, str]], figures: pd.DataFrame | None
) -> Row:
    """A table's row; `figures` are its comparisons that can miss."""
    records = results.read(name)
    marks = {mark for line in lines for mark in line.get("marks", "").split()}
    medians = []
    if figures is not None:
        in_points = figures["in_points"] == 1
        medians += [f"{size:.1%}"] if (size := median(figures[~in_points])) is not None else []
        medians += [f"{size:.1f} points"] if (size := median(figures[in_points])) is not None else []
    return (
        f"[{name}]({name}/table.md)",
        _state(lines, records),
        ", ".join(word for mark, word in STAND_IN_WORDS.items() if mark in marks),
        amounts(records).removeprefix("n: ").removesuffix("."),
        "" if figures is None else str(len(figures)),
        ", ".join(medians),
        f"{_minutes(records):.1f}" if records else "",
        _command(results.root, name),
    )


def _state(lines: Sequence[Mapping[str, str]], records: Sequence[Record]) -> str:
    if not records:
        kinds = {PAGE_KINDS.get(line.get("column", ""), "") for line in lines}
        if lines and "id" not in lines[0]:
            return "errors"
        kind = kinds.pop() if len(kinds) == 1 else ""
        return kind or ("drawn" if _has_figures(lines) else "no cells")
    phrases = ["costs only" if all(r.provenance.weights == "none" for r in records) else "from records"]
    stale_count = sum("older" in line["marks"].split() for line in lines)
    idle_count = len({line["id"] for line in lines if line.get("failed") == "not run"})
    phrases += [f"{stale_count} figures stale"] if stale_count else []
    phrases += [f"{idle_count} rows not run"] if idle_count else []
    return ", ".join(phrases)


def _has_figures(lines: Sequence[Mapping[str, str]]) -> bool:
    """Whether a page without cells has figures of its own, as drawings of trees have."""
    return any(line.get("ours") and not line.get("cell") for line in lines)


def _command(root: Path, name: str) -> str:
    """The first command in the notes of a table's Markdown."""
    path = path_of(root, name, "md")
    match = path.exists() and re.search(r"made by (`[^`]+`)", path.read_text(encoding="utf-8"))
    return match[1] if match else ""


def _minutes(records: Sequence[Record]) -> float:
    """The time that cells took, in minutes."""
    times = {r.key: (r.provenance.started, r.provenance.finished) for r in records}
    spans = (datetime.fromisoformat(end) - datetime.fromisoformat(start) for start, end in times.values())
    return sum(span.total_seconds() for span in spans) / 60


def _grid(rows: Sequence[Row]) -> str:
    """GitHub Markdown of rows, in the order of their names with numbers by size."""
    ordered_rows = sorted(rows, key=lambda row: _natural_key(row[0].strip("[").partition("]")[0]))
    lines = [HEADINGS, ("---",) * len(HEADINGS), *ordered_rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines) + "\n"


def _natural_key(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
