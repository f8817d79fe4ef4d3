"""A page of prediction errors: wording and files, in the format of tables.

Owns the wording. `errors` decides what is compared.
"""

from __future__ import annotations

import csv
import io
import statistics
from pathlib import Path

from repro.reports.claims.claims import CLAIM
from repro.reports.claims.claims_page import ends
from repro.reports.claims.errors import MISS, UNEXPLAINED, Compared, Report
from repro.reports.files import write_files
from repro.reports.formats.latex import to_latex
from repro.reports.formats.layout import UNITS, Grid, Heading, Page
from repro.reports.formats.render import to_markdown
from repro.reports.reference.bibliography import citations

CSV_HEADER = (
    *("reference", "table", "row", "column", "unit", "ours", "published_low", "published_high"),
    *("ratio", "reason"),
)


def page(found: Report) -> Page:
    """The report as a page: first the misses with their reasons, then all predictions, worst first."""
    names = ("published cell", "in", "row, column", "paper", "ours", "ratio")
    misses = [(*_words(each), each.reason) for each in found.misses]
    grids = (
        Grid(tuple(map(Heading, (*names, "reason"))), tuple(misses), "lllrrrp"),
        Grid(tuple(map(Heading, names)), tuple(map(_words, found.predicted)), "lllrrr"),
    )
    said = [f"Of {found.paper}'s values {len(found.predicted)} are predicted and compared."]
    if found.predicted:
        errors = [each.error for each in found.predicted]
        off = statistics.median([error for error in errors if error] or [0.0])
        said.append(
            f"Median error {statistics.median(errors):.1%}, worst {max(errors):.1%}; {errors.count(0)} agree "
            f"exactly or lie in a published range, and over the others the median is {off:.1%}."
        )
        explained = sum(each.reason != UNEXPLAINED for each in found.misses)
        said.append(
            f"{len(found.misses)} miss by more than {MISS:.0%} (the first table); {explained} of them are "
            "explained."
        )
    said.append(
        f"Left out: {found.fitted} that are fitted or determined by a matched agreement, {found.bounds} of "
        f"which the paper gives only a bound, {found.absent} without a figure of ours."
    )
    dates, commits = _origin(found)
    said.append(f"{dates or 'No figures'}, commit {commits or 'none'}, made by `{command(found.paper)}`.")
    return Page(
        f"{found.paper}/errors", f"How far our predictions of {found.paper} are off", grids, tuple(said)
    )


def command(paper: str) -> str:
    """Command that recreates a report."""
    return f"python scripts/errors.py {paper}"


def _origin(found: Report) -> tuple[str, str]:
    lines = [each.line for each in found.predicted]
    commits = sorted({commit for line in lines for commit in line["commit"].split()})
    return max((line["date"] for line in lines), default=""), " ".join(commits)


def _words(each: Compared) -> tuple[str, ...]:
    line, unit = each.line, UNITS.get(each.line["unit"], each.line["unit"])
    given = ends(_number(line["published_low"]), _number(line["published_high"]))
    ours = _number(line["ours"])
    own = (
        ends(_number(line.get("ours_low", "")), _number(line.get("ours_high", "")))
        if ours is None
        else ends(ours, ours)
    )
    place = "" if line["column"] == CLAIM else f"{line['row']}, {line['column']}"
    return line["reference"], each.table, place, f"{given} {unit}".strip(), own, f"{each.ratio:.2f}"


def _number(text: str) -> float | None:
    return float(text) if text else None


def to_csv(found: Report) -> str:
    """CSV with one unrounded line per prediction, worst first."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for each in found.predicted:
        line = each.line
        given = (line["published_low"], line["published_high"], line["ratio"])
        own = line["ours"] or f"{line['ours_low']}..{line['ours_high']}"
        place = (line["reference"], each.table, line["id"], line["column"], line["unit"])
        writer.writerow((*place, own, *given, each.reason))
    return out.getvalue()


def write_report(found: Report, folder: Path, bibliography: dict[str, str]) -> dict[str, Path]:
    """Write the report in `<folder>/<paper>/errors/`; InputError if it cannot be written."""
    shown, bibtex = page(found), citations([found.paper], bibliography)
    contents = {"md": to_markdown(shown, bibtex), "csv": to_csv(found), "tex": to_latex(shown, bibtex)}
    return write_files(shown.experiment, folder, contents)
