"""A page of claims: wording and files, in the format of tables.

Owns how a claim is worded. `claims` decides what is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from repro.core.digits import csv_of
from repro.reports.claims.claims import CLAIM, Claim, ClaimsSpec, CommittedDraws, compare
from repro.reports.comparison.comparison import POINT_LIMIT, TOLERANCE, Comparison, Ends
from repro.reports.comparison.frame import sentences, to_frame
from repro.reports.files import USUAL_FORMATS, write_page
from repro.reports.formats.layout import ABSENT, Grid, Page, range_words, signs, three_digits, with_unit
from repro.reports.reference.reference import PublishedCell
from repro.reports.tables.how_made import TABLES_LINE
from repro.reports.tables.table import legend

ALIGNMENTS = {"claim": "p", "where": "l", "paper": "r", "ours": "r", "n": "r"}
ALIGNMENTS |= dict.fromkeys(("distance", "verdict", "from"), "l")
"""Of the page's table, with their alignments."""


def write_claims(
    spec: ClaimsSpec,
    tables: Path,
    cells: Mapping[str, PublishedCell],
    bibliography: dict[str, str],
    formats: Collection[str] = USUAL_FORMATS,
    draws: CommittedDraws | None = None,
    out: Path | None = None,
) -> tuple[Page, dict[str, Path]]:
    """Compare a paper's claims with the tables of a folder, and write a page of them.

    Args:
        spec: the claims as configured.
        tables: the folder of the tables.
        cells: published values by id.
        bibliography: BibTeX entries by key.
        formats: of the page.
        draws: give intervals and bands of claims over several figures.
        out: the folder of the page; that of the tables by default.

    Returns:
        the page, and its files by format.

    Raises:
        InputError: as `compare`, or a paper has no BibTeX entry, or the folder cannot be written to.
    """
    claims = compare(spec, tables, cells, draws)
    claims_page, make_csv = page(spec, claims), partial(to_csv, claims)
    return claims_page, write_page(claims_page, make_csv, [spec.paper], out or tables, bibliography, formats)


def page(spec: ClaimsSpec, claims: Sequence[Claim]) -> Page:
    """The claims as a page with one table."""
    footnotes = list(spec.footnotes)
    lines = tuple(_line(claim, footnotes) for claim in claims)
    notes = [TABLES_LINE, *legend(mark for claim in claims for mark in claim.comparison.marks)]
    notes += [f"[{i}] {text}" for i, text in enumerate(footnotes, 1)]
    notes += _summary(claims)
    commits, date = origin(claims)
    command = f"python -m repro experiment={spec.experiment}"
    notes.append(f"{date or 'No figures'}, commit {commits or 'none'}, made by `{command}`.")
    return Page(spec.experiment, spec.title, (Grid.of(ALIGNMENTS, lines),), tuple(notes))


def claim_text(cell: PublishedCell) -> str:
    """What is claimed, and under which conditions."""
    quantity = cell.metric.replace("_", " ") + (f" against {cell.relative_to}" if cell.relative_to else "")
    models = f"{cell.model} with {cell.draft_model}" if cell.draft_model else cell.model
    phrases = (quantity, cell.device, models, cell.dataset, cell.condition)
    system_prefix = f"{cell.system}: " if cell.system else ""
    return system_prefix + "; ".join(part.replace(";", ", ").replace(",  ", ", ") for part in phrases if part)


def to_csv(claims: Sequence[Claim]) -> str:
    """CSV with one line per claim in ten digits: a table's columns, plus the ends of a range."""
    lines: list[Mapping[str, object]] = []
    for claim in claims:
        comparison, (low, high) = claim.comparison, claim.ours or (None, None)
        commits, date = origin([claim])
        line = {
            "row": claim_text(comparison.cell),
            "id": comparison.cell.id,
            "column": CLAIM,
            "unit": comparison.unit,
            "ours": low if low == high else None,
            "ours_low": low,
            "ours_high": high,
            **_ends("", [figure.interval for figure in comparison.ours]),
            "n": comparison.n,
            **_ends("band_", [figure.band for figure in comparison.ours]),
            "published_low": comparison.published.low,
            "published_high": comparison.published.high,
            "ratio": None if comparison.error is None or comparison.in_points else 1 + comparison.error,
            "marks": " ".join(comparison.marks),
            "failed": claim.failed or "",
            "reference": comparison.cell.id,
            "verdict": comparison.verdict or claim.verdict,
            "point": comparison.point,
            "certain": comparison.certain,
            "distance": comparison.distance,
            "decided_by": comparison.decided_by if comparison.verdict == "undetermined" else "",
            "tables": " ".join(claim.spec.tables),
            "note": " ".join(_remarks(claim)),
            "commit": commits,
            "date": date,
            "cell": " ".join(comparison.cells),
            "baseline": " ".join(comparison.baseline),
        }
        lines.append(line)
    return csv_of([*lines[0]] if lines else [], lines)


def _ends(name: str, ends: Sequence[Ends | None]) -> dict[str, float | None]:
    """The ends of one interval, or the outer and inner ends of those of a range; empty if one is unknown."""
    fields = [f"{name}{part}" for part in ("low", "low_to", "high_from", "high")]
    known_ends = [end for end in ends if end is not None]
    if not known_ends or len(known_ends) < len(ends):
        return dict.fromkeys(fields)
    inner_ends = (known_ends[0][1], known_ends[-1][0]) if len(known_ends) > 1 else (None, None)
    return dict(zip(fields, (known_ends[0][0], *inner_ends, known_ends[-1][1]), strict=True))


def _remarks(claim: Claim) -> list[str]:
    """Why we have no value, and what else is said of the claim."""
    return [*filter(None, (claim.spec.absent, claim.spec.note, claim.comparison.cell.note))]


def origin(claims: Sequence[Claim]) -> tuple[str, str]:
    """Commits of the compared values, and their newest date."""
    lines = [line for claim in claims for line in claim.lines]
    commits = sorted({commit for line in lines for commit in line["commit"].split()})
    return " ".join(commits), max((line["date"] for line in lines), default="")


def _line(claim: Claim, footnotes: list[str]) -> tuple[str, ...]:
    comparison, unit, reasons = claim.comparison, claim.comparison.unit, _remarks(claim)
    our_text = (
        with_unit(figures_text(comparison), unit) + signs(comparison.marks) if comparison.ours else ABSENT
    )
    if claim.failed:
        reasons.append(
            f"without {claim.failed} of {claim.failed + len(claim.lines)} figures, which are absent"
        )
    return (
        claim_text(comparison.cell) + "".join(f" [{_number(reason, footnotes)}]" for reason in reasons),
        f"sec. {comparison.cell.section}",
        with_unit(ends(comparison.published.low, comparison.published.high), unit),
        our_text,
        str(comparison.n or ABSENT),
        comparison.distance if comparison.ours else ABSENT,
        claim.verdict,
        ", ".join(claim.spec.tables) or ABSENT,
    )


def figures_text(comparison: Comparison) -> str:
    """Our figures, with their interval in brackets and their band in braces where all have one."""
    figures = comparison.ours
    text = ends(figures[0].value, figures[-1].value)
    for brackets, kind in (("[]", "interval"), ("{}", "band")):
        if all(ranges := [getattr(figure, kind) for figure in figures]):
            hull = ends(min(low for low, _ in ranges), max(high for _, high in ranges))
            text += f" {brackets[0]}{hull}{brackets[1]}"
    return text


def _number(text: str, footnotes: list[str]) -> int:
    if text not in footnotes:
        footnotes.append(text)
    return footnotes.index(text) + 1


def ends(low: float | None, high: float | None) -> str:
    """A value, range or bound with three significant digits."""
    return range_words(low, high, three_digits, negative_joiner="–")


def _summary(claims: Sequence[Claim]) -> list[str]:
    comparisons = [claim.comparison for claim in claims]
    verdicts = Counter(comparison.verdict for comparison in comparisons)
    points = Counter(comparison.point for comparison in comparisons if comparison.ours)
    lines = [
        f"Of {len(claims)} claims {verdicts['holds']} hold, {verdicts['fails']} fail, "
        f"{verdicts['undetermined']} are undetermined, {verdicts[None]} have no figure. By our figures alone "
        f"{points['holds']} hold and {points['fails']} fail. A printed number holds within {TOLERANCE:.0%}, "
        f"an accuracy within {POINT_LIMIT:.0f} points."
    ]
    return lines + sentences(to_frame(comparisons))
