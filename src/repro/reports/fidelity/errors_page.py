"""A paper's errors as a page: what misses and why, all predictions, broken bounds, what cannot miss.

Owns the wording and the files. `reading`, `reasons` and `skill` decide what is compared with what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from repro.core.digits import csv_text
from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.libraries import pd
from repro.reports.claims.claims import CLAIM
from repro.reports.claims.claims_page import ends
from repro.reports.comparison.comparison import FAMILIES, MISS, MISS_POINTS
from repro.reports.comparison.frame import COUNTED_GROUPS, fitted_misses, of_group, sentences
from repro.reports.fidelity.evidence import Reason, count_explained, reason_of
from repro.reports.fidelity.reading import Comparisons
from repro.reports.fidelity.skill import RULES, Skill, TrivialPredictor, skill
from repro.reports.files import write_page
from repro.reports.formats.layout import ABSENT, Grid, Page, signs, with_unit
from repro.reports.reference.reference import PublishedCell
from repro.reports.tables.how_made import TABLES_LINE

UNEXPLAINED = "not explained"

ALIGNMENTS = {
    "published value": "l",
    "in": "l",
    "row, column": "l",
    "paper": "r",
    "ours": "r",
    "n": "r",
    "distance": "l",
    "trivial": "r",
    "floor": "r",
}
"""Columns of the page's tables, with their alignment."""

CSV_COLUMNS = (
    *("id", "table", "row", "column", "family", "unit", "ours", "ours_high", "low", "high", "n"),
    *("published_low", "published_high", "error", "in_points", "rule", "trivial", "trivial_error", "floor"),
    *("group", "verdict", "point", "certain", "reason"),
)
"""Of the frame; the CSV file calls the first one `reference`, as all tables do."""


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
    """The comparisons with one paper, with what judges them.

    Attributes:
        paper: its name.
        frame: its comparisons. Beside the columns of `frame.SCHEMA`: the best trivial `rule` of their kind,
            its figure (`trivial`), that one's `trivial_error` and `trivial_distance`, the `floor`, and the
            `reason` of a miss that counts.
        skills: by kind our median error beside the best trivial rule's; none where no rule has a figure.
        evidence: what judges them.
    """

    paper: str
    frame: pd.DataFrame
    skills: Mapping[str, Skill]
    evidence: Evidence

    @property
    def kinds(self) -> dict[str, pd.DataFrame]:
        """All that can miss by kind, with those whose printed value is set aside."""
        return _kinds(self.frame)

    @property
    def relative(self) -> pd.DataFrame:
        """All that can miss and whose error is relative."""
        return self.frame[self.frame["can_miss"] & (self.frame["in_points"] == 0)]

    @cached_property
    def relative_skill(self) -> Skill | None:
        """Our median error of these beside the best trivial rule's; None where no rule has a figure."""
        return skill([*self.relative["compared"]], self.evidence.predictor)


def _kinds(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    can_miss = frame[frame["can_miss"]]
    by_family = {name: can_miss[can_miss["family"] == name] for name in FAMILIES}
    return {name: part for name, part in by_family.items() if len(part)}


def report(
    paper: str, comparisons: Comparisons, cells: Mapping[str, PublishedCell], evidence: Evidence
) -> Report:
    """The comparisons of all tables with a paper.

    Raises:
        InputError: the paper is unknown, or no table compares anything with it.
    """
    papers = {cell.paper for cell in cells.values()}
    if paper not in papers:
        raise InputError(unknown("paper", paper, papers))
    frame = comparisons.of(paper)
    if frame.empty:
        raise InputError(f"no table compares a figure with {paper}; make its tables first")
    skills = {
        name: kind_skill
        for name, part in _kinds(frame).items()
        if (kind_skill := skill([*part["compared"]], evidence.predictor))
    }
    return Report(paper, _judge(frame, skills, evidence), skills, evidence)


def _judge(frame: pd.DataFrame, skills: Mapping[str, Skill], evidence: Evidence) -> pd.DataFrame:
    """The frame of a paper with the columns that `Report` names."""
    rules = [skills[kind].rule if kind in skills else next(iter(RULES)) for kind in frame["family"]]
    lines = []
    for rule, comparison in zip(rules, frame["compared"], strict=True):
        trivial = evidence.predictor.compare(comparison, rule) if comparison.ours else None
        figures = (rule, trivial.ours[0].value, trivial.error, trivial.distance) if trivial else (None,) * 4
        floor = evidence.floors.get(comparison.cell.id)
        lines.append((*figures, floor, reason_of(comparison, evidence.reasons) or UNEXPLAINED))
    names = ("rule", "trivial", "trivial_error", "trivial_distance", "floor", "reason")
    judged = frame.join(pd.DataFrame(lines, columns=[*names], index=frame.index, dtype=object))
    judged.loc[~judged["missed"] | ~judged["group"].isin(COUNTED_GROUPS), "reason"] = ""
    return judged


def page(report: Report, commits: str = "", date: str = "") -> Page:
    """The report as a page."""
    frame = report.frame
    misses, counted = frame[frame["reason"] != ""], of_group(frame, *COUNTED_GROUPS)
    grids = [
        Grid.of(
            {**ALIGNMENTS, "reason": "p"}, [(*_cells(line), line.reason) for line in misses.itertuples()]
        ),
        _grid("all that count, the worst first", counted),
    ]
    titled = {"broken bounds": of_group(frame, "broken"), "fitted, off by over 10%": fitted_misses(frame)}
    grids += [_grid(title, part) for title, part in titled.items() if len(part)]
    if len(excluded := of_group(frame, "contradicted")):
        headings = {name: alignment for name, alignment in ALIGNMENTS.items() if name != "trivial"}
        lines = [
            (*cells[:-2], cells[-1], line.compared.cell.contradicted)
            for line, cells in zip(excluded.itertuples(), map(_cells, excluded.itertuples()), strict=True)
        ]
        grids.append(Grid.of({**headings, "proof in results/errata.md": "l"}, lines))
    if len(fixed := of_group(frame, "certain")):
        headings = {"cannot miss, not counted": "l", "in": "l", "why": "p"}
        grids.append(Grid.of(headings, fixed[["id", "table", "certain"]].itertuples(index=False, name=None)))
    if rules := _rules(report):
        headings = {"reason about": "l", "says that ours is": "l", "explains": "r", "contradicted by": "r"}
        grids.append(Grid.of({**headings, "reason": "p"}, rules))
    origin = f"{date or 'No figures'}, commit {commits or 'none'}, made by `{command(report.paper)}`."
    title = f"How far our figures for {report.paper} are off"
    notes = (TABLES_LINE, *_notes(report), origin)
    return Page(f"{report.paper}/errors", title, tuple(grids), notes, made_by_table=False)


def command(paper: str) -> str:
    """Command that recreates a report."""
    return f"repro errors {paper} --results results"


def _notes(report: Report) -> list[str]:
    frame = report.frame
    misses = frame[frame["reason"] != ""]
    notes, explained_count = sentences(frame), int((misses["reason"] != UNEXPLAINED).sum())
    notes.append(
        f"{len(misses)} are off by more than {MISS:.0%}, or {MISS_POINTS:.0f} points (the first "
        f"table); {explained_count} of them have a reason, {len(misses) - explained_count} have none."
    )
    notes += [_skill_sentence(name, kind_skill) for name, kind_skill in report.skills.items()]
    floored = frame[(frame["group"] == "relative") & frame["floor"].notna()]
    if len(floored):
        below_count = int((floored["size"] <= floored["floor"].astype(float)).sum())
        notes.append(
            f"Of {len(floored)} with a relative error the paper's own numbers contradict the printed one "
            f"(`floor`, results/errata.md): {below_count} are off by no more than that."
        )
    notes.append(f"{len(of_group(frame, 'absent'))} lines have no figure of ours.")
    return notes


def _skill_sentence(kind: str, best_rule: Skill) -> str:
    sizes = [
        f"{size:.1f} points" if kind == "accuracies" else f"{size:.1%}"
        for size in (best_rule.trivial, best_rule.ours)
    ]
    name = f"{kind[0].upper()}{kind[1:]}"
    return (
        f"{name}: the best trivial rule over {best_rule.n} is *{best_rule.rule}* "
        f"({RULES[best_rule.rule]}); its median error is {sizes[0]}, ours {sizes[1]}: a skill, "
        f"1 less the ratio, of {best_rule.value:.2f}."
    )


def _rules(report: Report) -> list[tuple[str, ...]]:
    comparisons, counted = report.frame["compared"], of_group(report.frame, *COUNTED_GROUPS)["compared"]
    lines: list[tuple[str, ...]] = []
    for reason in report.evidence.reasons:
        if any(reason.covers(comparison.cell) for comparison in comparisons):
            explained_count, contradicted_count = count_explained(reason, [*counted])
            lines.append(
                (reason.scope, reason.ours, str(explained_count), str(contradicted_count), reason.why)
            )
    return lines


def _grid(title: str, frame: pd.DataFrame) -> Grid:
    first_name, *names = ALIGNMENTS
    alignments = {
        f"{first_name}: {title}": ALIGNMENTS[first_name],
        **{name: ALIGNMENTS[name] for name in names},
    }
    return Grid.of(alignments, [_cells(line) for line in frame.itertuples()])


def _cells(line: Any) -> tuple[str, ...]:
    """A row of the frame as words."""
    return (
        line.id,
        line.table,
        "" if line.column == CLAIM else f"{line.row}, {line.column}",
        with_unit(ends(line.published_low, line.published_high), line.unit),
        ends(line.ours, line.ours if line.ours_high is None else line.ours_high)
        + signs(line.marks, ("proxy", "costs_only", "dequantized")),
        str(line.n or ABSENT),
        line.distance,
        line.trivial_distance or ABSENT,
        ABSENT if line.floor is None else f"{line.floor:.0%}",
    )


def to_csv(report: Report) -> str:
    """CSV in ten digits, a line for each comparison with a figure of ours, those that count first."""
    rows = report.frame[report.frame["group"] != "absent"][[*CSV_COLUMNS]].rename(columns={"id": "reference"})
    return csv_text([rows.columns, *rows.itertuples(index=False, name=None)])


def write_report(
    report: Report, folder: Path, bibliography: dict[str, str], origin: tuple[str, str]
) -> dict[str, Path]:
    """Write the report in `<folder>/<paper>/errors/`; `origin` are commits and newest date of its tables.

    Raises:
        InputError: it cannot be written.
    """
    return write_page(page(report, *origin), partial(to_csv, report), [report.paper], folder, bibliography)
