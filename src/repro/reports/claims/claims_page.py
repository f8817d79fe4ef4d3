"""A page of claims: wording and files, in the format of tables.

Owns how a claim is worded. `claims` decides what is compared.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from repro.reports.claims.claims import CLAIM, Claim, ClaimsSpec, compare
from repro.reports.files import write_files
from repro.reports.formats.latex import to_latex
from repro.reports.formats.layout import ABSENT, UNITS, Grid, Heading, Page, signs
from repro.reports.formats.render import to_markdown
from repro.reports.reference.bibliography import citations
from repro.reports.reference.reference import PublishedCell
from repro.reports.tables.table import MARKS

HEADINGS = ("claim", "where", "paper", "ours", "ratio", "verdict", "from")
CSV_HEADER = (
    *("row", "id", "column", "unit", "ours", "ours_low", "ours_high", "published_low", "published_high"),
    *("ratio", "marks", "failed", "reference", "verdict", "tables", "note", "commit", "date"),
)


def write_claims(
    spec: ClaimsSpec,
    folder: Path,
    cells: Mapping[str, PublishedCell],
    bibliography: dict[str, str],
    formats: Collection[str] = ("md", "csv", "tex"),
) -> tuple[Page, dict[str, Path]]:
    """Compare a paper's claims with the tables in a folder and write a page of them there.

    Returns:
        the page, and its files by format.

    Raises:
        InputError: as `compare`, or a paper has no BibTeX entry, or the folder cannot be written to.
    """
    claims = compare(spec, folder, cells)
    shown, bibtex = page(spec, claims), citations([spec.paper], bibliography)
    contents = {"md": to_markdown(shown, bibtex), "csv": to_csv(claims), "tex": to_latex(shown, bibtex)}
    wanted = {name: content for name, content in contents.items() if name in formats}
    return shown, write_files(spec.experiment, folder, wanted)


def page(spec: ClaimsSpec, claims: Sequence[Claim]) -> Page:
    """The claims as a page with one table."""
    footnotes = list(spec.footnotes)
    lines = tuple(_line(claim, footnotes) for claim in claims)
    used = {mark for claim in claims for mark in claim.marks}
    notes = [f"{MARKS[mark][0]} {MARKS[mark][1]}." for mark in MARKS if mark in used]
    notes += [f"[{i}] {text}" for i, text in enumerate(footnotes, 1)]
    notes += _summary(claims)
    commits, date = origin(claims)
    command = f"python -m repro experiment={spec.experiment}"
    notes.append(f"{date or 'No figures'}, commit {commits or 'none'}, made by `{command}`.")
    return Page(
        spec.experiment, spec.title, (Grid(tuple(map(Heading, HEADINGS)), lines, "plrrrll"),), tuple(notes)
    )


def words(cell: PublishedCell) -> str:
    """What is claimed, and under which conditions."""
    said = cell.metric.replace("_", " ") + (f" against {cell.relative_to}" if cell.relative_to else "")
    models = f"{cell.model} with {cell.draft_model}" if cell.draft_model else cell.model
    parts = (said, cell.device, models, cell.dataset, cell.condition)
    about = f"{cell.system}: " if cell.system else ""
    return about + "; ".join(part.replace(";", ", ").replace(",  ", ", ") for part in parts if part)


def to_csv(claims: Sequence[Claim]) -> str:
    """CSV with one unrounded line per claim: a table's columns, plus the ends of a range."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for claim in claims:
        low, high = claim.ours or (None, None)
        single = low if low == high else None
        given = (
            claim.published.low,
            claim.published.high,
            claim.ratio,
            " ".join(claim.marks),
            claim.failed or "",
        )
        why = " ".join(filter(None, (claim.spec.absent, claim.spec.note, claim.cell.note)))
        found = (claim.cell.id, claim.verdict, " ".join(claim.spec.tables), why, *origin([claim]))
        writer.writerow(
            (words(claim.cell), claim.cell.id, CLAIM, claim.unit, single, low, high, *given, *found)
        )
    return out.getvalue()


def origin(claims: Sequence[Claim]) -> tuple[str, str]:
    """Commits of the compared values, and their newest date."""
    lines = [line for claim in claims for line in claim.lines]
    commits = sorted({commit for line in lines for commit in line["commit"].split()})
    return " ".join(commits), max((line["date"] for line in lines), default="")


def _line(claim: Claim, footnotes: list[str]) -> tuple[str, ...]:
    unit = UNITS.get(claim.unit, claim.unit)
    ours = (
        ABSENT
        if claim.ours is None
        else ends(*claim.ours) + (f" {unit}" if unit else "") + signs(claim.marks)
    )
    given = ends(claim.published.low, claim.published.high)
    reasons = [claim.spec.absent, claim.spec.note, claim.cell.note]
    if claim.failed:
        reasons.append(
            f"without {claim.failed} of {claim.failed + len(claim.lines)} figures, which are absent"
        )
    return (
        words(claim.cell) + "".join(f" [{_number(reason, footnotes)}]" for reason in reasons if reason),
        f"sec. {claim.cell.section}",
        f"{given} {unit}".strip(),
        ours,
        ABSENT if claim.ratio is None else f"{claim.ratio:.2f}",
        claim.verdict,
        ", ".join(claim.spec.tables) or ABSENT,
    )


def _number(text: str, footnotes: list[str]) -> int:
    if text not in footnotes:
        footnotes.append(text)
    return footnotes.index(text) + 1


def ends(low: float | None, high: float | None) -> str:
    """A value, range or bound with three significant digits."""
    first, last = (None if end is None else _short(end) for end in (low, high))
    if first is None or last is None:
        return f"≤ {last}" if first is None else f"≥ {first}"
    return first if first == last else f"{first}–{last}"


def _short(value: float) -> str:
    """The value with three significant digits, trailing zeros dropped."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _summary(claims: Sequence[Claim]) -> list[str]:
    counted = {
        "inside the published value or bound": [
            c for c in claims if c.verdict.startswith(("inside", "within"))
        ],
        "outside": [c for c in claims if c.verdict.endswith(("above", "below"))],
        "without a figure": [c for c in claims if c.ours is None],
    }
    said = ", ".join(f"{len(some)} {how}" for how, some in counted.items())
    lines = [f"Of {len(claims)} claims {said}."]
    errors = [abs(float(claim.ratio or 0) - 1) for claim in claims if claim.predicted]
    fitted = sum(claim.ratio is not None and not claim.predicted for claim in claims)
    if errors:
        lines.append(
            f"Over {len(errors)} predicted values and ranges: median error {statistics.median(errors):.1%}, "
            f"worst {max(errors):.1%}." + (f" {fitted} fitted left out." if fitted else "")
        )
    return lines
