"""`fidelity.md`: one page over all papers, made from the tables' CSV files.

Owns what its tables count; `fidelity.md.jinja` has the page's words. Errors and winners are computed in their
own modules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from repro.libraries import jinja2, pd
from repro.records.record import FEWEST, Record, write_atomically
from repro.reports.claims.claims_page import ends, figures_text
from repro.reports.comparison.comparison import POINTS, TOLERANCE, Comparison
from repro.reports.comparison.frame import fitted_misses, median, of_group
from repro.reports.fidelity.errors_page import Report
from repro.reports.fidelity.evidence import ClaimReading, Headlines, PaperChoice, deciding, enveloped
from repro.reports.fidelity.reading import STATUSES, Comparisons, coverage, unnamed
from repro.reports.fidelity.skill import RULES, Skill, skill
from repro.reports.fidelity.winners import Race, one_rate, orders, our_figure, races
from repro.reports.formats.layout import with_unit
from repro.reports.formats.render import markdown_table
from repro.reports.reference.reference import PublishedCell
from repro.reports.tables.bands import draws_words

FILE = "fidelity.md"
TEMPLATE = Path(__file__).with_name("fidelity.md.jinja")
COMMAND = "repro errors --results results"

STAND_INS = {
    "proxy": "a smaller model's weights",
    "costs_only": "costs only, no weights",
    "dequantized": "dequantized weights",
    "matched": "agreement matched",
    "fitted": "fitted",
    "older": "older component",
    "wall": "wall clock",
}
"""Marks with what the page calls them."""


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
    words = {
        "command": COMMAND,
        "tolerance": f"{TOLERANCE:.0%}",
        "points": f"{POINTS:.0f}",
        "bands": _bands(drawn),
        "statuses": STATUSES,
        "rules": RULES,
        "headlines": _headlines(headlines, found, others),
        "coverage": _coverage(cells, found, headlines),
        "errors": _errors(reports, headlines),
        "winners": _winners(reports, headlines),
        "undetermined": _undetermined(reports),
        "stand_ins": _stand_ins(reports),
        "samples": _samples(reports),
        "age": _age(records, older),
        "choices": _choices(choices, others),
    }
    page = jinja2.Template(TEMPLATE.read_text(encoding="utf-8"), keep_trailing_newline=True)
    write_atomically(folder / FILE, page.render(words))
    return folder / FILE


def _bands(drawn: Mapping[str, int]) -> str:
    """What the bands in braces are, by table."""
    tables: dict[str, list[str]] = {}
    for table, count in drawn.items():
        tables.setdefault(draws_words(count), []).append(table)
    return "; ".join(f"{words} for {', '.join(names)}" for words, names in tables.items())


def _headlines(
    headlines: Headlines, found: Comparisons, others: Mapping[str, Sequence[ClaimReading]]
) -> dict[str, object]:
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
    headings = ("claim", "paper", "ours", "n", "distance", "alone", "as chosen", "by alternatives", "verdict")
    table = markdown_table((*headings, "rests on", "what stands in"), rows)
    return {"number": len(headlines.claims), "counts": "; ".join(said), "table": table}


def _reach(comparison: Comparison, readings: Sequence[ClaimReading]) -> str:
    """The least and the most of our figures under all readings."""
    every = [comparison, *(reading.comparison for reading in readings)]
    values = [figure.value for judged in every for figure in judged.ours]
    return with_unit(ends(min(values), max(values)), comparison.unit)


def _decided_by(comparison: Comparison, readings: Sequence[ClaimReading]) -> str:
    """The choices that turn a claim, each with the claim under its alternative that is farthest from ours."""
    if not readings:
        return "no alternative"
    if not (turning := deciding(comparison, readings)):
        reached = enveloped(comparison, readings).verdict != comparison.verdict
        return f"none of {len(readings)} alternatives alone" + (
            ", but their range reaches it" if reached else ""
        )
    farthest = [
        max((r for r in turning if r.choice.id == name), key=partial(_farthest, comparison))
        for name in dict.fromkeys(reading.choice.id for reading in turning)
    ]
    return "; ".join(
        f"`{r.choice.id}` ({r.alternative.name}: {_own_values(r.comparison)}, {r.comparison.point})"
        for r in farthest
    )


def _farthest(comparison: Comparison, reading: ClaimReading) -> float:
    pairs = zip(comparison.ours, reading.comparison.ours, strict=False)
    return max(abs(ours.value - theirs.value) for ours, theirs in pairs)


def _own_values(comparison: Comparison) -> str:
    return ends(comparison.ours[0].value, comparison.ours[-1].value) if comparison.ours else "no figure"


def _choices(
    choices: Sequence[PaperChoice], others: Mapping[str, Sequence[ClaimReading]]
) -> dict[str, object]:
    """Each choice with its alternatives and what the claims would be."""
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
    headings = ("choice", "chosen", "after misses", "alternative", "override", "claims there")
    followed = Counter(choice.after_misses for choice in choices)
    after = {"yes": followed["yes"], "partly": followed["partly"]}
    return {"number": len(choices), "table": markdown_table(headings, rows), **after}


def _said(one: Comparison | None) -> tuple[str, str, str, str]:
    """Published value, ours with interval and band, n, distance."""
    if one is None:
        return "", "", "", "no figure"
    given = with_unit(ends(one.published.low, one.published.high), one.unit)
    if not one.ours:
        return given, "", "", "no figure"
    return given, with_unit(figures_text(one), one.unit), str(one.n or ""), one.distance


def _coverage(
    cells: Mapping[str, PublishedCell], found: Comparisons, headlines: Headlines
) -> dict[str, object]:
    counts = coverage(cells, found, headlines.missing_models)
    apart = counts.index.str.endswith("_v2")
    counts = pd.concat(
        [
            counts[~apart],
            counts[~apart].sum().to_frame("all five").T,
            counts[apart].rename(lambda paper: f"{paper} (apart)"),
        ]
    )
    rows = [(paper, row.sum(), *row) for paper, row in counts.iterrows()]
    named = [name for name in unnamed(cells, found) if not cells[name].paper.endswith("_v2")]
    return {"table": markdown_table(("paper", "values", *STATUSES), rows), "unnamed": ", ".join(named)}


def _errors(reports: Sequence[Report], headlines: Headlines) -> dict[str, object]:
    rows = []
    for report in reports:
        for kind, some in report.kinds.items():
            rows.append(_kind(report, kind, some, report.skills.get(kind), headlines))
        every = _relative(report)
        worth = skill([*every["compared"]], report.evidence.predictor)
        rows.append(_kind(report, "all relative", every, worth, headlines))
    headings = ("paper", "kind", "n", "median", "without the set aside", "trivial rule", "it, ours (n)")
    every = pd.concat([report.frame for report in reports])
    sure = Counter(of_group(every, "certain")["certain"])
    broken = of_group(every, "broken")
    return {
        "kinds": markdown_table((*headings, "skill", "own system", "others"), rows),
        "counts": _counted(reports),
        "certain": "; ".join(f"{count} {why}" for why, count in sure.most_common()),
        "number_broken": len(broken),
        "broken": "; ".join(broken["id"] + ", " + broken["distance"]),
    }


def _relative(report: Report) -> pd.DataFrame:
    """All that can miss and whose error is relative."""
    return report.frame[report.frame["can_miss"] & (report.frame["in_points"] == 0)]


def _kind(
    report: Report, kind: str, some: pd.DataFrame, worth: Skill | None, headlines: Headlines
) -> tuple[str, ...]:
    """A line of the table of errors."""
    size = _points if kind == "accuracies" else _percent
    counted = some[some["group"] != "contradicted"]
    is_own = some["system"] == headlines.systems.get(report.paper)
    predictor = report.evidence.predictor
    parts = [
        skill([*some[half]["compared"]], predictor, [worth.rule]) if worth else None
        for half in (is_own, ~is_own)
    ]
    return (
        *(report.paper, kind, str(len(some)), size(median(some))),
        f"{size(median(counted))} ({len(counted)})" if len(counted) < len(some) else "",
        *((worth.rule, f"{size(worth.trivial)}, {size(worth.ours)} ({worth.n})") if worth else ("", "")),
        *(f"{part.value:.2f}" if part else "" for part in (worth, *parts)),
    )


def _counted(reports: Sequence[Report]) -> str:
    """What is counted beside the errors; the naive median has what cannot miss among it."""
    rows = []
    for report in reports:
        own, counts = report.frame, report.frame["group"].value_counts().to_dict()
        naive = own[own["error"].notna() & (own["group"] != "fitted") & (own["in_points"] == 0)]
        of = {name: counts.get(name, 0) for name in ("inside", "kept", "broken", "fitted", "certain")}
        rows.append(
            (
                report.paper,
                _percent(_part(_relative(report)["size"], 0.75)),
                _percent(median(naive)),
                of["inside"],
                f"{of['broken']} of {of['broken'] + of['kept']}",
                f"{len(fitted_misses(own))} of {of['fitted']}",
                of["certain"],
                counts.get("contradicted", 0),
            )
        )
    headings = ("paper", "p75", "naive median", "inside a range", "bounds broken", "fitted, off by 10%")
    return markdown_table((*headings, "cannot miss", "set aside"), rows)


def _part(sizes: pd.Series[float], share: float) -> float | None:
    """The error that a share of them is below."""
    errors = sorted(sizes)
    return errors[min(len(errors) - 1, int(share * len(errors)))] if errors else None


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _points(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _winners(reports: Sequence[Report], headlines: Headlines) -> str:
    rows = []
    for report in reports:
        found = races(report.frame.sort_index()["compared"])
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
    return markdown_table((*headings, "ours in another order"), rows)


def _undetermined(reports: Sequence[Report]) -> str:
    """Counts of verdicts over all comparisons that count or bound, and what would decide the open ones."""
    rows = []
    for report in reports:
        own = _with_figures(report)
        own = own[(own["group"] != "fitted") & (own["certain"] == "")]
        verdicts, points = Counter(own["verdict"]), Counter(own["point"])
        open_ones = own[own["verdict"] == "undetermined"].sort_index()["compared"]
        needs = Counter(one.decided_by or "nothing that is known" for one in open_ones)
        counts = (verdicts["holds"], verdicts["fails"], verdicts["undetermined"])
        said = "; ".join(f"{count}: {words}" for words, count in needs.most_common(4))
        rows.append((report.paper, *counts, f"{points['holds']} / {points['fails']}", said))
    return markdown_table(
        ("paper", "holds", "fails", "undetermined", "alone: holds / fails", "decided by"), rows
    )


def _with_figures(report: Report) -> pd.DataFrame:
    return report.frame[report.frame["group"] != "absent"]


def _stand_ins(reports: Sequence[Report]) -> str:
    rows = []
    for report in reports:
        marks = _with_figures(report)["marks"]
        counts = marks.explode().value_counts()
        rows.append((report.paper, len(marks), *(counts.get(mark, 0) for mark in STAND_INS)))
    return markdown_table(("paper", "figures", *STAND_INS.values()), rows)


def _samples(reports: Sequence[Report]) -> str:
    rows = []
    for report in reports:
        own = _with_figures(report)
        counts = own["n"].dropna().astype(int)
        counts = counts[counts > 0]
        said = (counts.min(), f"{counts.median():g}", counts.max()) if len(counts) else ("", "", "")
        whole = [
            sum(all(getattr(figure, some) for figure in one.ours) for one in own["compared"])
            for some in ("interval", "band")
        ]
        rows.append((report.paper, len(own), len(counts), *said, (counts < FEWEST).sum(), *whole))
    headings = ("paper", "figures", "rest on texts or rows", "least", "median", "most")
    return markdown_table((*headings, f"on fewer than {FEWEST}", "with interval", "with band"), rows)


def _age(records: Sequence[Record], older: Collection[str]) -> str:
    frame = pd.DataFrame(
        {
            "folder": record.experiment.partition("/")[0],
            "stale": record.key in older,
            "dirty": bool(record.provenance.dirty),
            "commit": record.provenance.commit,
            "date": record.provenance.finished[:10],
        }
        for record in records
    )
    of_folder = frame.groupby("folder")
    counts = of_folder.agg(cells=("date", "size"), stale=("stale", "sum"), dirty=("dirty", "sum"))
    counts["commits"] = of_folder["commit"].nunique()
    counts["dates"] = of_folder["date"].min() + " to " + of_folder["date"].max()
    rows = counts.reset_index().itertuples(index=False)
    headings = ("folder", "cells", "made by older components", "with uncommitted changes", "commits")
    return markdown_table((*headings, "computed"), rows)
