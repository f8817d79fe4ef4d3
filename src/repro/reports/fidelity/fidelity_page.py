"""`fidelity.md`: one page over all papers, made from the tables' CSV files.

Owns the page's wording. Coverage, errors and winners are computed in their own modules.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from repro.core.errors import InputError
from repro.records.record import FEWEST, Record, write_atomically
from repro.reports.claims.claims_page import ends
from repro.reports.comparison.comparison import FAMILIES, POINTS, TOLERANCE, Compared, family
from repro.reports.comparison.summary import median
from repro.reports.fidelity.coverage import STATUSES, coverage, unnamed
from repro.reports.fidelity.errors_page import Report
from repro.reports.fidelity.headlines import Headlines
from repro.reports.fidelity.marked import FigureSources
from repro.reports.fidelity.reading import Comparisons
from repro.reports.fidelity.skill import skill
from repro.reports.fidelity.winners import Race, counted, races
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

Lines = Iterator[str]


def write_fidelity(
    reports: Sequence[Report],
    found: Comparisons,
    tables: FigureSources,
    headlines: Headlines,
    records: Sequence[Record],
    older: Collection[str],
    drawn: Mapping[str, int],
    folder: Path,
) -> Path:
    """Write the page into a folder; `drawn` has the draws of each table's bands."""
    sections = {
        "Headline claims": _headlines(headlines, found),
        "With a real pair": _real_pairs(headlines, found, tables),
        "Coverage of the published values": _coverage(tables.cells, found, headlines),
        "Errors": _errors(reports),
        "Who wins": _winners(reports, headlines),
        "Undetermined": _undetermined(reports),
        "What stands in": _stand_ins(reports),
        "Sample sizes": _samples(reports),
        "Current or stale": _age(records, older),
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


def _headlines(headlines: Headlines, found: Comparisons) -> Lines:
    by_id, verdicts, points = found.by_id(), Counter[str](), Counter[str]()
    rows = []
    for claim in headlines.claims:
        one = by_id.get(claim.id)
        determined = "fitted" if one and one.cell.determined else ""
        verdict = determined or (one and one.verdict) or "no figure"
        point = determined or (one and one.point) or "no figure"
        verdicts[verdict] += 1
        points[point] += 1
        rows.append((claim.says, *_said(one), verdict, point if one else "", claim.about))
    counts = [
        ", ".join(f"{count} {word}" for word, count in some.most_common()) for some in (verdicts, points)
    ]
    yield f"Of {len(headlines.claims)}: {counts[0]}. By our figures alone: {counts[1]}."
    yield ""
    yield from _table(("claim", "paper", "ours", "n", "distance", "verdict", "alone", "rests on"), rows)


def _real_pairs(headlines: Headlines, found: Comparisons, tables: FigureSources) -> Lines:
    """The claims of which tables of this folder have a real pair's figures."""
    rows = []
    for claim in headlines.claims:
        try:
            low, ours, high, n = (
                [tables.value(f"{place} :: {field}") for place in claim.real_pair]
                for field in ("low", "ours", "high", "n")
            )
        except InputError:  # these tables are not made
            continue
        if ours:
            pair = f"{ends(min(ours), max(ours))} [{ends(min(low), max(high))}] ×"
            rows.append((claim.says, *_said(found.by_id().get(claim.id))[:2], pair, f"{max(n):.0f}"))
    yield "Qwen2.5-Coder-1.5B computes with the 0.5B as its draft, in the shapes of the papers' models."
    yield "Nothing is matched: where a claim turns with the pair, how often the draft agrees decides it."
    yield ""
    yield from _table(("claim", "paper", "stand-ins", "real pair", "n"), rows)


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


def _errors(reports: Sequence[Report]) -> Lines:
    yield "Over the figures that can miss; beside them the median with those that cannot (naive)."
    yield ""
    rows = []
    for report in reports:
        own = report.summary
        naive = [one for one in report.comparisons if one.error is not None and not one.fitted]
        worth = skill(own.relative, [report.trivial(one) for one in own.relative])
        rows.append(
            (
                report.paper,
                str(len(own.relative)),
                _percent(own.median),
                _percent(_part(own.relative, 0.75)),
                _percent(median([one for one in naive if not one.in_points])),
                f"{_percent(worth.ours)}, {_percent(worth.trivial)} ({worth.n})" if worth else "",
                f"{worth.value:.2f}" if worth else "",
                str(len(own.points)),
                "" if median(own.points) is None else f"{median(own.points):.1f}",
                str(len(own.inside)),
                f"{len(own.broken)} of {len(own.broken) + len(own.kept)}",
                f"{len(own.fitted_misses)} of {len(own.fitted)}",
                str(len(own.certain)),
                str(len(own.contradicted)),
                _percent(own.median_with_contradicted) if own.contradicted else "",
            )
        )
    headings = (
        "paper",
        "n",
        "median",
        "p75",
        "naive median",
        "ours, trivial (n)",
        "skill",
        "accuracies",
        "points",
    )
    yield from _table(
        (
            *headings,
            "inside a range",
            "bounds broken",
            "fitted, off by 10%",
            "cannot miss",
            "contradicted",
            "median with",
        ),
        rows,
    )
    yield ""
    yield "By family, median error (n); accuracies in points:"
    yield ""
    families: list[list[str]] = []
    for name in FAMILIES:
        words_of = [name]
        for report in reports:
            some = [one for one in report.summary.counted if family(one.cell) == name]
            middle = median(some)
            points = name == "accuracies"
            words = "" if middle is None else f"{middle:.1f}" if points else _percent(middle)
            words_of.append(f"{words} ({len(some)})" if some else "")
        families.append(words_of)
    yield from _table(("family", *(report.paper for report in reports)), families)
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


def _winners(reports: Sequence[Report], headlines: Headlines) -> Lines:
    yield "Systems on one workload, by our figures alone: pairs in the paper's order (without printed ties"
    yield "within 1% and pairs of fitted values), and workloads that its own system wins, there and here."
    yield ""
    rows = []
    for report in reports:
        found = races(report.comparisons)
        by_artifact: dict[str, list[Race]] = {}
        for race in found:
            by_artifact.setdefault(race.artifact, []).append(race)
        for name, own in [*by_artifact.items(), *([("all", found)] if len(by_artifact) > 1 else [])]:
            agree, pairs, wins, races_won = counted(own, headlines.systems.get(report.paper, ""))
            if pairs or races_won:
                rows.append((report.paper, name, f"{agree} of {pairs}", f"{wins} of {races_won}"))
    yield from _table(("paper", "table", "pairs agree", "own system first"), rows)


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
