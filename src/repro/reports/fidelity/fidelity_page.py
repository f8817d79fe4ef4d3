"""`fidelity.md`: one page over all papers, made from the tables' CSV files.

Owns the page's wording. Coverage, errors and winners are computed in their own modules.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from repro.records.record import FEWEST, Record, write_atomically
from repro.reports.claims.claims_page import ends
from repro.reports.comparison.comparison import POINTS, TOLERANCE, Compared
from repro.reports.comparison.summary import median
from repro.reports.fidelity.choices import ClaimReading, PaperChoice, deciding, enveloped
from repro.reports.fidelity.coverage import STATUSES, coverage, unnamed
from repro.reports.fidelity.errors_page import Report
from repro.reports.fidelity.headlines import Headlines
from repro.reports.fidelity.reading import Comparisons
from repro.reports.fidelity.skill import RULES, Skill, skill
from repro.reports.fidelity.winners import Race, one_rate, orders, our_figure, races
from repro.reports.formats.layout import UNITS
from repro.reports.reference.reference import PublishedCell
from repro.reports.tables.bands import draws_words

FILE = "fidelity.md"
COMMAND = "repro errors --results results"

PREFACE = f"""# Fidelity: what holds of five papers

Made by `{COMMAND}` from the tables beside it; nothing is edited by hand.
[docs/evidence.md](../docs/evidence.md) defines verdicts and errors. A printed number holds if ours agrees
within {TOLERANCE:.0%} (an accuracy within {POINTS:.0f} points), a range if both ends are reached, "up to" if
its bound is reached. The verdict is over the whole 95% interval and band of assumed numbers, where they are
known; the verdict on our figure alone stands beside it. A figure that rests on prompts or rows and has no
interval is undetermined.
"""

ERRORS = """\
Over all figures that can miss, by kind; a paper's kinds are mixed in its line *all relative* alone. The
medians over all stand first, then those without printed values that are set aside (docs/errata.md). The
trivial rule is that with the smallest median on the same figures; beside it ours on them, and our skill,
1 less their ratio: of all, of the paper's own system and of the others. Accuracies are in points.
"""

WINNERS = """\
Systems on one workload, by our figures alone: pairs in the paper's order (without printed ties within
1%, pairs of fitted values and what cannot miss: lossless text, means), and workloads that its own system
wins, there and here. Beside both stands what one rate an engine gets, from one cell each, by weights and
lengths.
"""

Lines = Iterator[str]


def write_fidelity(
    reports: Sequence[Report],
    found: Comparisons,
    cells: Mapping[str, PublishedCell],
    headlines: Headlines,
    choices: Sequence[PaperChoice],
    others: Mapping[str, Sequence[ClaimReading]],
    records: Sequence[Record],
    older: Collection[str],
    drawn: Mapping[str, int],
    folder: Path,
) -> Path:
    """Write the page into a folder.

    `others` are a claim's readings under the alternatives of `choices`, by the claim's id; `drawn` has the
    draws of each table's bands.
    """
    sections = {
        "Headline claims": _headlines(headlines, found, others),
        "Coverage of the published values": _coverage(cells, found, headlines),
        "Errors": _errors(reports, headlines),
        "Who wins": _winners(reports, headlines),
        "Undetermined": _undetermined(reports),
        "What stands in": _stand_ins(reports),
        "Sample sizes": _samples(reports),
        "Current or stale": _age(records, older),
        "Choices": _choices(choices, others),
    }
    text = (
        PREFACE
        + _bands(drawn)
        + "".join(f"\n## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in sections.items())
    )
    path = folder / FILE
    write_atomically(path, text)
    return path


def _bands(drawn: Mapping[str, int]) -> str:
    """What the bands in braces are, by table."""
    tables: dict[str, list[str]] = {}
    for table, count in drawn.items():
        tables.setdefault(draws_words(count), []).append(table)
    said = "; ".join(f"{words} for {', '.join(names)}" for words, names in tables.items())
    return f"In brackets stand intervals, in braces bands: {said}.\n" if said else ""


def _headlines(
    headlines: Headlines, found: Comparisons, others: Mapping[str, Sequence[ClaimReading]]
) -> Lines:
    """Each claim as we chose, then over all alternatives to our choices, with those that turn it."""
    by_id, rows = found.by_id(), []
    counts = {"over all alternatives": Counter[str](), "as chosen": Counter[str](), "alone": Counter[str]()}
    for claim in headlines.claims:
        comparison, readings = by_id.get(claim.id), others.get(claim.id, ())
        published, ours, n, distance = _said(comparison)
        whole, chosen, alone, reach, decided = ("no figure", "no figure", "", "", "")
        if comparison is not None and comparison.ours:
            judged = (enveloped(comparison, readings).verdict, comparison.verdict, comparison.point)
            whole, chosen, alone = ("fitted",) * 3 if comparison.cell.determined else map(str, judged)
            reach, decided = _reach(comparison, readings), _decided_by(comparison, readings)
        for counter, verdict in zip(counts.values(), (whole, chosen, alone), strict=True):
            counter[verdict or "no figure"] += 1
        rows.append(
            (claim.says, published, ours, n, distance, alone, chosen, reach, whole, decided, claim.about)
        )
    said = [
        f"{where}: " + ", ".join(f"{count} {word}" for word, count in counter.most_common())
        for where, counter in counts.items()
    ]
    yield f"Of {len(headlines.claims)}, {'; '.join(said)}."
    yield "A verdict is over the least and the most that alternatives to our choices give ([below](#choices),"
    yield "with intervals and bands); `as chosen` is over ours, and `alone` over our figure alone."
    yield ""
    headings = ("claim", "paper", "ours", "n", "distance", "alone", "as chosen", "by alternatives", "verdict")
    yield from _table((*headings, "rests on", "what stands in"), rows)


def _reach(comparison: Compared, readings: Sequence[ClaimReading]) -> str:
    """The least and the most of our figures under all readings."""
    every = [comparison, *(reading.comparison for reading in readings)]
    values = [figure.value for judged in every for figure in judged.ours]
    return f"{ends(min(values), max(values))} {UNITS.get(comparison.unit, comparison.unit)}"


def _decided_by(comparison: Compared, readings: Sequence[ClaimReading]) -> str:
    """The choices that turn a claim, each with the claim under its alternative that is farthest from ours."""
    if not readings:
        return "no alternative"
    if not (turning := deciding(comparison, readings)):
        reached = enveloped(comparison, readings).verdict != comparison.verdict
        return f"none of {len(readings)} alternatives alone" + (
            ", but their range reaches it" if reached else ""
        )
    farthest: dict[str, ClaimReading] = {}
    for reading in turning:
        name, distance = reading.choice.id, _farthest(comparison, reading)
        if name not in farthest or distance > _farthest(comparison, farthest[name]):
            farthest[name] = reading
    return "; ".join(
        f"`{name}` ({other.alternative.name}: {_own_values(other.comparison)}, {other.comparison.point})"
        for name, other in farthest.items()
    )


def _farthest(comparison: Compared, reading: ClaimReading) -> float:
    pairs = zip(comparison.ours, reading.comparison.ours, strict=False)
    return max(abs(ours.value - theirs.value) for ours, theirs in pairs)


def _own_values(comparison: Compared) -> str:
    return ends(comparison.ours[0].value, comparison.ours[-1].value) if comparison.ours else "no figure"


def _choices(choices: Sequence[PaperChoice], others: Mapping[str, Sequence[ClaimReading]]) -> Lines:
    """Each choice with its alternatives and what the claims would be."""
    followed = Counter(choice.after_misses for choice in choices)
    yield f"Of {len(choices)} choices that papers leave to us {followed['yes']} were made after misses had"
    yield f"been seen, {followed['partly']} partly. `conf/reference/choices.yaml` lists them."
    yield ""
    readings: dict[tuple[str, str], list[str]] = {}
    for some in others.values():
        for reading in some:
            claim = reading.comparison
            words = f"{claim.cell.id} {_own_values(claim)} ({claim.point or 'no figure'})"
            readings.setdefault((reading.choice.id, reading.alternative.name), []).append(words)
    rows = []
    for choice in choices:
        for alternative in choice.alternatives:
            figures = "; ".join(readings.get((choice.id, alternative.name), ())) or alternative.absent
            override = f"`{alternative.overrides}`" if alternative.overrides else "none"
            rows.append(
                (f"`{choice.id}`", choice.chosen, choice.after_misses, alternative.name, override, figures)
            )
    yield from _table(("choice", "chosen", "after misses", "alternative", "override", "claims there"), rows)


def _said(one: Compared | None) -> tuple[str, str, str, str]:
    """Published value, ours with interval and band, n, distance."""
    if one is None:
        return "", "", "", "no figure"
    unit = UNITS.get(one.unit, one.unit)
    given = f"{ends(one.published.low, one.published.high)} {unit}"
    if not one.ours:
        return given, "", "", "no figure"
    own = ends(one.ours[0].value, one.ours[-1].value)
    whole = [(figure.interval, figure.band) for figure in one.ours]
    if all(interval for interval, _ in whole):
        own += f" [{ends(*_hull([interval for interval, _ in whole if interval]))}]"
    if all(band for _, band in whole):
        own += f" {{{ends(*_hull([band for _, band in whole if band]))}}}"
    return given, f"{own} {unit}", str(one.n or ""), one.distance


def _hull(every: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return min(low for low, _ in every), max(high for _, high in every)


def _coverage(cells: Mapping[str, PublishedCell], found: Comparisons, headlines: Headlines) -> Lines:
    counts = coverage(cells, found, headlines.missing_models)
    first = [paper for paper in counts if not paper.endswith("_v2")]
    total = sum((counts[paper] for paper in first), Counter())
    rows = [_counts(paper, counts[paper]) for paper in first]
    rows.append(_counts("all five", total))
    rows += [_counts(f"{paper} (apart)", counts[paper]) for paper in counts if paper not in first]
    yield from _table(("paper", "values", *STATUSES), rows)
    yield ""
    yield from (f"- {name}: {words}." for name, words in STATUSES.items())
    if names := [name for name in unnamed(cells, found) if cells[name].paper in first]:
        yield f"- Named by no table: {', '.join(names)}."


def _counts(name: str, own: Counter[str]) -> tuple[str, ...]:
    return (name, str(sum(own.values())), *(str(own[one]) for one in STATUSES))


def _errors(reports: Sequence[Report], headlines: Headlines) -> Lines:
    yield ERRORS
    rows = []
    for report in reports:
        for kind, some in report.kinds.items():
            rows.append(_kind(report, kind, some, report.skills.get(kind), headlines))
        every = [one for one in report.summary.compared if not one.in_points]
        worth = skill(every, report.evidence.predictor)
        rows.append(_kind(report, "all relative", every, worth, headlines))
    headings = (
        "paper",
        "kind",
        "n",
        "median",
        "without the set aside",
        "trivial rule",
        "it, ours (n)",
        "skill",
    )
    yield from _table((*headings, "own system", "others"), rows)
    yield ""
    yield from (f"- {rule}: {words}." for rule, words in RULES.items())
    yield "- A rule without a figure for some of them takes that of the first other rule that has one."
    yield ""
    yield from _counted(reports)


def _kind(
    report: Report, kind: str, some: Sequence[Compared], worth: Skill | None, headlines: Headlines
) -> tuple[str, ...]:
    """A line of the table of errors."""
    size = _points if kind == "accuracies" else _percent
    counted = [compared for compared in some if not compared.cell.contradicted]
    system, predictor = headlines.systems.get(report.paper), report.evidence.predictor
    halves = [[c for c in some if (c.cell.system == system) == ours] for ours in (True, False)]
    parts = [skill(half, predictor, [worth.rule]) if worth else None for half in halves]
    return (
        *(report.paper, kind, str(len(some)), size(median(some))),
        f"{size(median(counted))} ({len(counted)})" if len(counted) < len(some) else "",
        *((worth.rule, f"{size(worth.trivial)}, {size(worth.ours)} ({worth.n})") if worth else ("", "")),
        *(f"{part.value:.2f}" if part else "" for part in (worth, *parts)),
    )


def _counted(reports: Sequence[Report]) -> Lines:
    """What is counted beside the errors; the naive median has what cannot miss among it."""
    rows = []
    for report in reports:
        own = report.summary
        naive = [one for one in report.comparisons if one.error is not None and not one.fitted]
        rows.append(
            (
                report.paper,
                _percent(_part([one for one in own.compared if not one.in_points], 0.75)),
                _percent(median([one for one in naive if not one.in_points])),
                str(len(own.inside)),
                f"{len(own.broken)} of {len(own.broken) + len(own.kept)}",
                f"{len(own.fitted_misses)} of {len(own.fitted)}",
                str(len(own.certain)),
                str(len(own.contradicted)),
            )
        )
    headings = ("paper", "p75", "naive median", "inside a range", "bounds broken", "fitted, off by 10%")
    yield from _table((*headings, "cannot miss", "set aside"), rows)
    yield ""
    every = Counter(one.certain for report in reports for one in report.summary.certain)
    yield f"What cannot miss, by rule: {'; '.join(f'{count} {why}' for why, count in every.most_common())}."
    broken = [one for report in reports for one in report.summary.broken]
    yield ""
    yield f"Broken bounds ({len(broken)}): {'; '.join(f'{one.cell.id}, {one.distance}' for one in broken)}."


def _part(some: Sequence[Compared], share: float) -> float | None:
    errors = sorted(abs(one.error or 0.0) for one in some)
    return errors[min(len(errors) - 1, int(share * len(errors)))] if errors else None


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _points(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _winners(reports: Sequence[Report], headlines: Headlines) -> Lines:
    yield WINNERS
    rows = []
    for report in reports:
        found = races(report.comparisons)
        system, rate = headlines.systems.get(report.paper, ""), one_rate(found, report.evidence.predictor)
        by_artifact: dict[str, list[Race]] = {}
        for race in found:
            by_artifact.setdefault(race.artifact, []).append(race)
        for name, some in [*by_artifact.items(), *([("all", found)] if len(by_artifact) > 1 else [])]:
            ours, theirs = orders(some, system, our_figure), orders(some, system, rate)
            wrong = "; ".join(f"{count} {names}" for names, count in ours.wrong.most_common(3))
            left = sum(ours.wrong.values()) - sum(count for _, count in ours.wrong.most_common(3))
            counts = [f"{one.agree} of {one.pairs}" for one in (ours, theirs)]
            wins = [f"{one.first} of {one.races}" if one.races else "" for one in (ours, theirs)]
            rows.append((report.paper, name, *counts, *wins, wrong + (f"; {left} others" if left else "")))
    headings = ("paper", "table", "pairs agree", "by one rate", "own system first", "by one rate")
    yield from _table((*headings, "ours in another order"), rows)


def _undetermined(reports: Sequence[Report]) -> Lines:
    """Counts of verdicts over all comparisons that count or bound, and what would decide the open ones."""
    rows = []
    for report in reports:
        own = [one for one in report.comparisons if one.ours and not one.fitted and not one.certain]
        verdicts, points = Counter(one.verdict for one in own), Counter(one.point for one in own)
        open_ones = Counter(_needs(one) for one in own if one.verdict == "undetermined")
        needs = "; ".join(f"{count}: {words}" for words, count in open_ones.most_common(4))
        counts = (verdicts["holds"], verdicts["fails"], verdicts["undetermined"])
        rows.append((report.paper, *map(str, counts), f"{points['holds']} / {points['fails']}", needs))
    yield "Every comparison that can miss, by verdict, and what would decide the undetermined:"
    yield ""
    yield from _table(("paper", "holds", "fails", "undetermined", "alone: holds / fails", "decided by"), rows)


def _needs(one: Compared) -> str:
    return one.decided_by or "nothing that is known"


def _stand_ins(reports: Sequence[Report]) -> Lines:
    words = {
        "proxy": "a smaller model's weights",
        "costs_only": "costs only, no weights",
        "dequantized": "dequantized weights",
        "matched": "agreement matched",
        "fitted": "fitted",
        "older": "older component",
        "wall": "wall clock",
    }
    rows = []
    for report in reports:
        own = [one for one in report.comparisons if one.ours]
        counts = Counter(mark for one in own for mark in one.marks)
        rows.append((report.paper, str(len(own)), *(str(counts[mark]) for mark in words)))
    yield from _table(("paper", "figures", *words.values()), rows)


def _samples(reports: Sequence[Report]) -> Lines:
    yield "Distinct texts, rows or requests behind a compared figure; a text counts once."
    yield ""
    rows = []
    for report in reports:
        own = [one for one in report.comparisons if one.ours]
        counts = [one.n for one in own if one.n]
        whole = sum(all(figure.interval for figure in one.ours) for one in own)
        bands = sum(all(figure.band for figure in one.ours) for one in own)
        said = (
            (str(min(counts)), f"{statistics.median(counts):g}", str(max(counts))) if counts else ("", "", "")
        )
        few = sum(count < FEWEST for count in counts)
        rows.append((report.paper, str(len(own)), str(len(counts)), *said, str(few), str(whole), str(bands)))
    headings = ("paper", "figures", "rest on texts or rows", "least", "median", "most")
    more = (f"on fewer than {FEWEST}", "with interval", "with band")
    yield from _table((*headings, *more), rows)


def _age(records: Sequence[Record], older: Collection[str]) -> Lines:
    papers = sorted({record.experiment.partition("/")[0] for record in records})
    rows = []
    for paper in papers:
        own = [record for record in records if record.experiment.partition("/")[0] == paper]
        stale = sum(record.key in older for record in own)
        dirty = sum(bool(record.provenance.dirty) for record in own)
        dates = sorted(record.provenance.finished[:10] for record in own)
        commits = len({record.provenance.commit for record in own})
        rows.append(
            (paper, str(len(own)), str(stale), str(dirty), str(commits), f"{dates[0]} to {dates[-1]}")
        )
    headings = (
        "folder",
        "cells",
        "made by older components",
        "with uncommitted changes",
        "commits",
        "computed",
    )
    yield from _table(headings, rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Lines:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    yield from (f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)
