"""A paper's errors as a page: what misses and why, all predictions, broken bounds, what cannot miss.

Owns the wording and the files. `reading`, `reasons` and `skill` decide what is compared with what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from repro.core.digits import csv_text
from repro.core.errors import InputError
from repro.core.registry import unknown
from repro.libraries import pd
from repro.reports.claims.claims import CLAIM
from repro.reports.claims.claims_page import ends
from repro.reports.comparison.comparison import FAMILIES, MISS, MISS_POINTS
from repro.reports.comparison.frame import COUNTED, fitted_misses, of_group, sentences
from repro.reports.fidelity.evidence import Reason, reason_of, record
from repro.reports.fidelity.reading import Comparisons
from repro.reports.fidelity.skill import RULES, Skill, TrivialPredictor, skill
from repro.reports.files import write_page
from repro.reports.formats.layout import ABSENT, Grid, Page, signs, with_unit
from repro.reports.reference.reference import PublishedCell
from repro.reports.tables.how_made import OF_TABLES

UNEXPLAINED = "not explained"

HEADINGS = {
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


def _kinds(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    every = frame[frame["can_miss"]]
    found = {name: every[every["family"] == name] for name in FAMILIES}
    return {name: some for name, some in found.items() if len(some)}


def report(paper: str, found: Comparisons, cells: Mapping[str, PublishedCell], evidence: Evidence) -> Report:
    """The comparisons of all tables with a paper.

    Raises:
        InputError: the paper is unknown, or no table compares anything with it.
    """
    papers = {cell.paper for cell in cells.values()}
    if paper not in papers:
        raise InputError(unknown("paper", paper, papers))
    own = found.of(paper)
    if own.empty:
        raise InputError(f"no table compares a figure with {paper}; make its tables first")
    skills = {
        name: worth
        for name, some in _kinds(own).items()
        if (worth := skill([*some["compared"]], evidence.predictor))
    }
    return Report(paper, _judged(own, skills, evidence), skills, evidence)


def _judged(own: pd.DataFrame, skills: Mapping[str, Skill], evidence: Evidence) -> pd.DataFrame:
    """The frame of a paper with the columns that `Report` names."""
    rules = [skills[kind].rule if kind in skills else next(iter(RULES)) for kind in own["family"]]
    lines = []
    for rule, one in zip(rules, own["compared"], strict=True):
        trivial = evidence.predictor.compared(one, rule) if one.ours else None
        figures = (rule, trivial.ours[0].value, trivial.error, trivial.distance) if trivial else (None,) * 4
        floor = evidence.floors.get(one.cell.id)
        lines.append((*figures, floor, reason_of(one, evidence.reasons) or UNEXPLAINED))
    names = ("rule", "trivial", "trivial_error", "trivial_distance", "floor", "reason")
    judged = own.join(pd.DataFrame(lines, columns=[*names], index=own.index, dtype=object))
    judged.loc[~judged["missed"] | ~judged["group"].isin(COUNTED), "reason"] = ""
    return judged


def page(found: Report, commits: str = "", date: str = "") -> Page:
    """The report as a page."""
    own = found.frame
    misses, counted = own[own["reason"] != ""], of_group(own, *COUNTED)
    grids = [
        Grid.of({**HEADINGS, "reason": "p"}, [(*_words(one), one.reason) for one in misses.itertuples()]),
        _titled("all that count, the worst first", counted),
    ]
    others = {"broken bounds": of_group(own, "broken"), "fitted, off by over 10%": fitted_misses(own)}
    grids += [_titled(title, some) for title, some in others.items() if len(some)]
    if len(aside := of_group(own, "contradicted")):
        headings = {name: letter for name, letter in HEADINGS.items() if name != "trivial"}
        lines = [
            (*words[:-2], words[-1], one.compared.cell.contradicted)
            for one, words in zip(aside.itertuples(), map(_words, aside.itertuples()), strict=True)
        ]
        grids.append(Grid.of({**headings, "proof in results/errata.md": "l"}, lines))
    if len(sure := of_group(own, "certain")):
        headings = {"cannot miss, not counted": "l", "in": "l", "why": "p"}
        grids.append(Grid.of(headings, sure[["id", "table", "certain"]].itertuples(index=False, name=None)))
    if rules := _rules(found):
        headings = {"reason about": "l", "says that ours is": "l", "explains": "r", "contradicted by": "r"}
        grids.append(Grid.of({**headings, "reason": "p"}, rules))
    made = f"{date or 'No figures'}, commit {commits or 'none'}, made by `{command(found.paper)}`."
    title = f"How far our figures for {found.paper} are off"
    notes = (OF_TABLES, *_notes(found), made)
    return Page(f"{found.paper}/errors", title, tuple(grids), notes, made_by_table=False)


def command(paper: str) -> str:
    """Command that recreates a report."""
    return f"repro errors {paper} --results results"


def _notes(found: Report) -> list[str]:
    own = found.frame
    misses = own[own["reason"] != ""]
    said, known = sentences(own), int((misses["reason"] != UNEXPLAINED).sum())
    said.append(
        f"{len(misses)} are off by more than {MISS:.0%}, or {MISS_POINTS:.0f} points (the first "
        f"table); {known} of them have a reason, {len(misses) - known} have none."
    )
    said += [_worth(name, worth) for name, worth in found.skills.items()]
    floored = own[(own["group"] == "relative") & own["floor"].notna()]
    if len(floored):
        below = int((floored["size"] <= floored["floor"].astype(float)).sum())
        said.append(
            f"Of {len(floored)} with a relative error the paper's own numbers contradict the printed one "
            f"(`floor`, results/errata.md): {below} are off by no more than that."
        )
    said.append(f"{len(of_group(own, 'absent'))} lines have no figure of ours.")
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


def _rules(found: Report) -> list[tuple[str, ...]]:
    every, counted = found.frame["compared"], of_group(found.frame, *COUNTED)["compared"]
    lines: list[tuple[str, ...]] = []
    for reason in found.evidence.reasons:
        if any(reason.covers(one.cell) for one in every):
            explained, against = record(reason, [*counted])
            lines.append((reason.scope, reason.ours, str(explained), str(against), reason.why))
    return lines


def _titled(title: str, some: pd.DataFrame) -> Grid:
    first, *others = HEADINGS
    headings = {f"{first}: {title}": HEADINGS[first], **{name: HEADINGS[name] for name in others}}
    return Grid.of(headings, [_words(one) for one in some.itertuples()])


def _words(one: Any) -> tuple[str, ...]:
    """A row of the frame as words."""
    return (
        one.id,
        one.table,
        "" if one.column == CLAIM else f"{one.row}, {one.column}",
        with_unit(ends(one.published_low, one.published_high), one.unit),
        ends(one.ours, one.ours if one.ours_high is None else one.ours_high)
        + signs(one.marks, ("proxy", "costs_only", "dequantized")),
        str(one.n or ABSENT),
        one.distance,
        one.trivial_distance or ABSENT,
        ABSENT if one.floor is None else f"{one.floor:.0%}",
    )


def to_csv(found: Report) -> str:
    """CSV in ten digits, a line for each comparison with a figure of ours, those that count first."""
    shown = found.frame[found.frame["group"] != "absent"][[*CSV_COLUMNS]].rename(columns={"id": "reference"})
    return csv_text([shown.columns, *shown.itertuples(index=False, name=None)])


def write_report(
    found: Report, folder: Path, bibliography: dict[str, str], origin: tuple[str, str]
) -> dict[str, Path]:
    """Write the report in `<folder>/<paper>/errors/`; `origin` are commits and newest date of its tables.

    Raises:
        InputError: it cannot be written.
    """
    return write_page(page(found, *origin), partial(to_csv, found), [found.paper], folder, bibliography)
