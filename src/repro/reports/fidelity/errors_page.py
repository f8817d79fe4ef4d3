"""A paper's errors as a page: what misses and why, all predictions, broken bounds, what cannot miss.

Owns the wording and the files. `reading`, `reasons` and `skill` decide what is compared with what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from repro.core.digits import csv_text
from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.reports.claims.claims import CLAIM
from repro.reports.claims.claims_page import ends
from repro.reports.comparison.comparison import FAMILIES, MISS, MISS_POINTS, Compared, family
from repro.reports.comparison.summary import Summary, sentences, summed
from repro.reports.fidelity.reading import Comparisons
from repro.reports.fidelity.reasons import Reason, reason_of, record
from repro.reports.fidelity.skill import RULES, Skill, TrivialPredictor, skill
from repro.reports.files import write_page
from repro.reports.formats.layout import ABSENT, UNITS, Grid, Heading, Page, signs
from repro.reports.reference.reference import PublishedCell
from repro.reports.tables.how_made import OF_TABLES

UNEXPLAINED = "not explained"

HEADINGS = ("published value", "in", "row, column", "paper", "ours", "n", "distance", "trivial", "floor")
CSV_HEADER = (
    *("reference", "table", "row", "column", "family", "unit", "ours", "ours_high", "low", "high", "n"),
    *("published_low", "published_high", "error", "in_points", "rule", "trivial", "trivial_error", "floor"),
    *("group", "verdict", "point", "certain", "reason"),
)


@dataclass(frozen=True)
class Evidence:
    """What the errors of all papers are judged with.

    Attributes:
        reasons: why predictions miss.
        floors: how far a paper's own other numbers are from printed values, by id.
        predictor: the trivial rules.
    """

    reasons: Sequence[Reason]
    floors: Mapping[str, float]
    predictor: TrivialPredictor


@dataclass(frozen=True)
class Report:
    """The comparisons with one paper, sorted by how they count, with what judges them."""

    paper: str
    summary: Summary
    comparisons: Sequence[Compared]
    evidence: Evidence

    def reason(self, one: Compared) -> str:
        """Why a comparison misses."""
        return reason_of(one, self.evidence.reasons) or UNEXPLAINED

    @cached_property
    def kinds(self) -> dict[str, list[Compared]]:
        """All that can miss by kind, with those whose printed value is set aside."""
        every = {
            name: [one for one in self.summary.compared if family(one.cell) == name] for name in FAMILIES
        }
        return {name: some for name, some in every.items() if some}

    @cached_property
    def skills(self) -> dict[str, Skill]:
        """By kind our median error beside the best trivial rule's; none where no rule has a figure."""
        predictor = self.evidence.predictor
        return {name: worth for name, some in self.kinds.items() if (worth := skill(some, predictor))}

    def rule(self, one: Compared) -> str:
        """The best trivial rule of a comparison's kind."""
        worth = self.skills.get(family(one.cell))
        return worth.rule if worth else next(iter(RULES))

    def trivial(self, one: Compared) -> Compared | None:
        """The comparison by that rule."""
        return self.evidence.predictor.compared(one, self.rule(one))


def report(paper: str, found: Comparisons, cells: Mapping[str, PublishedCell], evidence: Evidence) -> Report:
    """The comparisons of all tables with a paper.

    Raises:
        InputError: the paper is unknown, or no table compares anything with it.
    """
    papers = {cell.paper for cell in cells.values()}
    if paper not in papers:
        raise InputError(unknown("paper", paper, papers))
    own = found.of(paper)
    if not own:
        raise InputError(f"no table compares a figure with {paper}; make its tables first")
    return Report(paper, summed(own), own, evidence)


def page(found: Report, commits: str = "", date: str = "") -> Page:
    """The report as a page."""
    summary = found.summary
    misses = tuple((*_words(found, one), found.reason(one)) for one in summary.misses)
    grids = [
        Grid(tuple(map(Heading, (*HEADINGS, "reason"))), misses, "lllrrrlrrp"),
        _grid(found, summary.counted, "all that count, the worst first"),
    ]
    for title, some in {
        "broken bounds": summary.broken,
        "fitted, off by over 10%": summary.fitted_misses,
    }.items():
        if some:
            grids.append(_grid(found, some, title))
    if summary.contradicted:
        headings = tuple(map(Heading, (*HEADINGS[:-2], "floor", "proof in docs/errata.md")))
        lines = tuple(
            (*_words(found, one)[:-2], _words(found, one)[-1], one.cell.contradicted)
            for one in summary.contradicted
        )
        grids.append(Grid(headings, lines, "lllrrrlrl"))
    if summary.certain:
        headings = tuple(map(Heading, ("cannot miss, not counted", "in", "why")))
        lines = tuple((one.cell.id, one.table, one.certain) for one in summary.certain)
        grids.append(Grid(headings, lines, "llp"))
    if rules := _rules(found):
        headings = tuple(
            map(Heading, ("reason about", "says that ours is", "explains", "contradicted by", "reason"))
        )
        grids.append(Grid(headings, rules, "llrrp"))
    return Page(
        f"{found.paper}/errors",
        f"How far our figures for {found.paper} are off",
        tuple(grids),
        (
            OF_TABLES,
            *_notes(found),
            f"{date or 'No figures'}, commit {commits or 'none'}, made by `{command(found.paper)}`.",
        ),
        made_by_table=False,
    )


def command(paper: str) -> str:
    """Command that recreates a report."""
    return f"repro errors {paper} --results results"


def _notes(found: Report) -> list[str]:
    summary = found.summary
    said = sentences(summary)
    known = [one for one in summary.misses if found.reason(one) != UNEXPLAINED]
    said.append(
        f"{len(summary.misses)} are off by more than {MISS:.0%}, or {MISS_POINTS:.0f} points (the first "
        f"table); {len(known)} of them have a reason, {len(summary.misses) - len(known)} have none."
    )
    said += [_worth(name, worth) for name, worth in found.skills.items()]
    floored = [one for one in summary.relative if one.cell.id in found.evidence.floors]
    below = sum(abs(one.error or 0) <= found.evidence.floors[one.cell.id] for one in floored)
    if floored:
        said.append(
            f"Of {len(floored)} with a relative error the paper's own numbers contradict the printed one "
            f"(`floor`, docs/errata.md): {below} are off by no more than that."
        )
    said.append(f"{len(summary.absent)} lines have no figure of ours.")
    return said


def _worth(kind: str, worth: Skill) -> str:
    sizes = [
        f"{size:.1f} points" if kind == "accuracies" else f"{size:.1%}"
        for size in (worth.trivial, worth.ours)
    ]
    name = f"{kind[0].upper()}{kind[1:]}"
    return (
        f"{name}: the best trivial rule over {worth.n} is *{worth.rule}* ({RULES[worth.rule]}); "
        f"its median error is {sizes[0]}, ours {sizes[1]}: a skill, 1 less the ratio, of {worth.value:.2f}."
    )


def _rules(found: Report) -> tuple[tuple[str, ...], ...]:
    lines = []
    for reason in found.evidence.reasons:
        if any(reason.covers(one.cell) for one in found.comparisons):
            explained, against = record(reason, found.summary.counted)
            lines.append((reason.scope, reason.ours, str(explained), str(against), reason.why))
    return tuple(lines)


def _grid(found: Report, some: Sequence[Compared], title: str) -> Grid:
    headings = (Heading(f"{HEADINGS[0]}: {title}"), *map(Heading, HEADINGS[1:]))
    return Grid(headings, tuple(_words(found, one) for one in some), "lllrrrlrr")


def _words(found: Report, one: Compared) -> tuple[str, ...]:
    unit = UNITS.get(one.unit, one.unit)
    given = ends(one.published.low, one.published.high)
    own = ends(one.ours[0].value, one.ours[-1].value)
    place = "" if one.column == CLAIM else f"{one.row}, {one.column}"
    other, floor = found.trivial(one), found.evidence.floors.get(one.cell.id)
    return (
        one.cell.id,
        one.table,
        place,
        f"{given} {unit}".strip(),
        own + signs(one.marks, ("proxy", "costs_only", "dequantized")),
        str(one.n or ABSENT),
        one.distance,
        other.distance if other else ABSENT,
        ABSENT if floor is None else f"{floor:.0%}",
    )


def to_csv(found: Report) -> str:
    """CSV in ten digits, a line for each comparison with a figure of ours, those that count first."""
    lines: list[Sequence[object]] = [CSV_HEADER]
    for group in ("relative", "points", "inside", "kept", "broken", "fitted", "contradicted", "certain"):
        for one in getattr(found.summary, group):
            other, whole = found.trivial(one), one.ours[0].interval if len(one.ours) == 1 else None
            figures = (
                one.ours[0].value,
                one.ours[-1].value if len(one.ours) > 1 else None,
                *(whole or (None, None)),
            )
            worth = (found.rule(one), other.ours[0].value, other.error) if other else (None, None, None)
            lines.append(
                (
                    *(
                        one.cell.id,
                        one.table,
                        one.row,
                        one.column,
                        family(one.cell),
                        one.unit,
                        *figures,
                        one.n,
                    ),
                    *(one.published.low, one.published.high, one.error, int(one.in_points), *worth),
                    *(found.evidence.floors.get(one.cell.id), group, one.verdict, one.point, one.certain),
                    found.reason(one) if one.missed and group in ("relative", "points") else "",
                )
            )
    return csv_text(lines)


def write_report(
    found: Report, folder: Path, bibliography: dict[str, str], origin: tuple[str, str]
) -> dict[str, Path]:
    """Write the report in `<folder>/<paper>/errors/`; `origin` are commits and newest date of its tables.

    Raises:
        InputError: it cannot be written.
    """
    return write_page(page(found, *origin), partial(to_csv, found), [found.paper], folder, bibliography)
