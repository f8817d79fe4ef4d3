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
from repro.reports.comparison.comparison import POINT_LIMIT, TOLERANCE, Comparison
from repro.reports.comparison.frame import fitted_misses, median, of_group
from repro.reports.fidelity.errors_page import Report
from repro.reports.fidelity.evidence import ClaimReading, Headlines, PaperChoice, deciding_readings, envelop
from repro.reports.fidelity.reading import STATUSES, Comparisons, coverage, unnamed_values
from repro.reports.fidelity.skill import RULES, Skill, skill
from repro.reports.fidelity.winners import Race, one_rate, orders, our_figure, races
from repro.reports.formats.layout import with_unit
from repro.reports.formats.render import markdown_table
from repro.reports.reference.reference import PublishedCell
from repro.reports.tables.bands import draws_words

FIDELITY_FILE = "fidelity.md"
TEMPLATE = Path(__file__).with_name("fidelity.md.jinja")
COMMAND = "repro errors --results results"
IN_SHORT = "In short"
"""The heading of what README shows of the page."""
VERDICT_WORDS = {"holds": "hold", "fails": "fail", "undetermined": "open", "fitted": "fitted"}
"""Verdicts on a headline claim with what a paper's claims are called that have it."""

STAND_IN_WORDS = {
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
    comparisons: Comparisons,
    cells: Mapping[str, PublishedCell],
    headlines: Headlines,
    choices: Sequence[PaperChoice],
    readings: Mapping[str, Sequence[ClaimReading]],
    records: Sequence[Record],
    older_keys: Collection[str],
    draw_counts: Mapping[str, int],
    folder: Path,
) -> Path:
    """Write the page into a folder.

    `readings` are those of a claim under the alternatives of `choices`, by the claim's id; `draws` has the
    draws of each table's bands.
    """
    headline_content, verdicts = _headlines(headlines, comparisons, readings)
    content = {
        "command": COMMAND,
        "in_short": IN_SHORT,
        "papers": _papers(reports, headlines, verdicts),
        "tolerance": f"{TOLERANCE:.0%}",
        "points": f"{POINT_LIMIT:.0f}",
        "bands": _bands(draw_counts),
        "statuses": STATUSES,
        "rules": RULES,
        "headlines": headline_content,
        "coverage": _coverage(cells, comparisons, headlines),
        "errors": _errors(reports, headlines),
        "winners": _winners(reports, headlines),
        "undetermined": _verdict_table(reports),
        "stand_ins": _stand_ins(reports),
        "samples": _samples(reports),
        "age": _age(records, older_keys),
        "choices": _choices(choices, readings),
    }
    page = jinja2.Template(TEMPLATE.read_text(encoding="utf-8"), keep_trailing_newline=True)
    write_atomically(folder / FIDELITY_FILE, page.render(content))
    return folder / FIDELITY_FILE


def _bands(draw_counts: Mapping[str, int]) -> str:
    """What the bands in braces are, by table."""
    tables_by_words: dict[str, list[str]] = {}
    for table, count in draw_counts.items():
        tables_by_words.setdefault(draws_words(count), []).append(table)
    return "; ".join(f"{text} for {', '.join(names)}" for text, names in tables_by_words.items())


def _headlines(
    headlines: Headlines, comparisons: Comparisons, readings: Mapping[str, Sequence[ClaimReading]]
) -> tuple[dict[str, object], Mapping[str, Mapping[str, int]]]:
    """Each claim as we chose, then over all alternatives to our choices, with those that turn it.

    Returns:
        What the page says of them; by paper how many claims have which verdict over all alternatives.
    """
    comparisons_by_id, rows, verdicts_by_paper = comparisons.by_id(), [], dict[str, Counter[str]]()
    counts = {"over all alternatives": Counter[str](), "as chosen": Counter[str](), "alone": Counter[str]()}
    for claim in headlines.claims:
        comparison, claim_readings = comparisons_by_id.get(claim.id), readings.get(claim.id, ())
        published_text, our_text, n, distance = _figure_cells(comparison)
        overall, as_chosen, point, span, choices = ("no figure", "no figure", "", "", "")
        if comparison is not None and comparison.ours:
            verdicts = (envelop(comparison, claim_readings).verdict, comparison.verdict, comparison.point)
            overall, as_chosen, point = ("fitted",) * 3 if comparison.cell.determined else map(str, verdicts)
            span, choices = _reach(comparison, claim_readings), _decided_by(comparison, claim_readings)
        for counter, verdict in zip(counts.values(), (overall, as_chosen, point), strict=True):
            counter[verdict or "no figure"] += 1
        verdicts_by_paper.setdefault(claim.id.partition(".")[0], Counter())[overall] += 1
        rows.append(
            (
                claim.says,
                published_text,
                our_text,
                n,
                distance,
                point,
                as_chosen,
                span,
                overall,
                choices,
                claim.about,
            )
        )
    tallies = [
        f"{scope}: " + ", ".join(f"{count} {word}" for word, count in counter.most_common())
        for scope, counter in counts.items()
    ]
    headings = ("claim", "paper", "ours", "n", "distance", "alone", "as chosen", "by alternatives", "verdict")
    table = markdown_table((*headings, "rests on", "what stands in"), rows)
    content = {"number": len(headlines.claims), "counts": "; ".join(tallies), "table": table}
    return content, verdicts_by_paper


def _papers(
    reports: Sequence[Report], headlines: Headlines, verdicts: Mapping[str, Mapping[str, int]]
) -> str:
    """A row for each paper: its claims by verdict, and the median of the relative errors that can miss."""
    rows = []
    for report in reports:
        if report.paper in verdicts:
            frame, counts, paper_skill = report.relative, verdicts[report.paper], report.relative_skill
            rows.append(
                (
                    headlines.systems[report.paper],
                    *(counts.get(verdict, 0) for verdict in VERDICT_WORDS),
                    f"{_percent(median(frame))} ({len(frame)})",
                    f"{_percent(paper_skill.trivial)} ({paper_skill.n})" if paper_skill else "",
                )
            )
    headings = ("", *(f"claims that {word}" for word in list(VERDICT_WORDS.values())[:2]), "open", "fitted")
    return markdown_table((*headings, "median error (n)", "of a trivial rule (n)"), rows)


def _reach(comparison: Comparison, readings: Sequence[ClaimReading]) -> str:
    """The least and the most of our figures under all readings."""
    variants = [comparison, *(reading.comparison for reading in readings)]
    values = [figure.value for variant in variants for figure in variant.ours]
    return with_unit(ends(min(values), max(values)), comparison.unit)


def _decided_by(comparison: Comparison, readings: Sequence[ClaimReading]) -> str:
    """The choices that turn a claim, each with the claim under its alternative that is farthest from ours."""
    if not readings:
        return "no alternative"
    if not (deciders := deciding_readings(comparison, readings)):
        is_reached = envelop(comparison, readings).verdict != comparison.verdict
        return f"none of {len(readings)} alternatives alone" + (
            ", but their range reaches it" if is_reached else ""
        )
    farthest_readings = [
        max((r for r in deciders if r.choice.id == name), key=partial(_difference, comparison))
        for name in dict.fromkeys(reading.choice.id for reading in deciders)
    ]
    return "; ".join(
        f"`{r.choice.id}` ({r.alternative.name}: {_our_range(r.comparison)}, {r.comparison.point})"
        for r in farthest_readings
    )


def _difference(comparison: Comparison, reading: ClaimReading) -> float:
    pairs = zip(comparison.ours, reading.comparison.ours, strict=False)
    return max(abs(our_figure.value - other_figure.value) for our_figure, other_figure in pairs)


def _our_range(comparison: Comparison) -> str:
    return ends(comparison.ours[0].value, comparison.ours[-1].value) if comparison.ours else "no figure"


def _choices(
    choices: Sequence[PaperChoice], readings: Mapping[str, Sequence[ClaimReading]]
) -> dict[str, object]:
    """Each choice with its alternatives and what the claims would be."""
    claim_texts: dict[tuple[str, str], list[str]] = {}
    for claim_readings in readings.values():
        for reading in claim_readings:
            claim = reading.comparison
            text = f"{claim.cell.id} {_our_range(claim)} ({claim.point or 'no figure'})"
            claim_texts.setdefault((reading.choice.id, reading.alternative.name), []).append(text)
    rows = []
    for choice in choices:
        for alternative in choice.alternatives:
            figures = "; ".join(claim_texts.get((choice.id, alternative.name), ())) or alternative.absent
            override = f"`{alternative.overrides}`" if alternative.overrides else "none"
            rows.append(
                (f"`{choice.id}`", choice.chosen, choice.after_misses, alternative.name, override, figures)
            )
    headings = ("choice", "chosen", "after misses", "alternative", "override", "claims there")
    miss_counts = Counter(choice.after_misses for choice in choices)
    after_misses = {"yes": miss_counts["yes"], "partly": miss_counts["partly"]}
    return {"number": len(choices), "table": markdown_table(headings, rows), **after_misses}


def _figure_cells(comparison: Comparison | None) -> tuple[str, str, str, str]:
    """Published value, ours with interval and band, n, distance."""
    if comparison is None:
        return "", "", "", "no figure"
    published_text = with_unit(ends(comparison.published.low, comparison.published.high), comparison.unit)
    if not comparison.ours:
        return published_text, "", "", "no figure"
    our_text = with_unit(figures_text(comparison), comparison.unit)
    return published_text, our_text, str(comparison.n or ""), comparison.distance


def _coverage(
    cells: Mapping[str, PublishedCell], comparisons: Comparisons, headlines: Headlines
) -> dict[str, object]:
    counts = coverage(cells, comparisons, headlines.missing_models)
    is_second_version = counts.index.str.endswith("_v2")
    counts = pd.concat(
        [
            counts[~is_second_version],
            counts[~is_second_version].sum().to_frame("all five").T,
            counts[is_second_version].rename(lambda paper: f"{paper} (apart)"),
        ]
    )
    rows = [(paper, row.sum(), *row) for paper, row in counts.iterrows()]
    omissions = [name for name in unnamed_values(cells, comparisons) if not cells[name].paper.endswith("_v2")]
    return {"table": markdown_table(("paper", "values", *STATUSES), rows), "unnamed": ", ".join(omissions)}


def _errors(reports: Sequence[Report], headlines: Headlines) -> dict[str, object]:
    rows = []
    for report in reports:
        for kind, part in report.kinds.items():
            rows.append(_kind(report, kind, part, report.skills.get(kind), headlines))
        rows.append(_kind(report, "all relative", report.relative, report.relative_skill, headlines))
    headings = ("paper", "kind", "n", "median", "without the set aside", "trivial rule", "it, ours (n)")
    frame = pd.concat([report.frame for report in reports])
    certain = Counter(of_group(frame, "certain")["certain"])
    broken = of_group(frame, "broken")
    return {
        "kinds": markdown_table((*headings, "skill", "own system", "others"), rows),
        "counts": _count_table(reports),
        "certain": "; ".join(f"{count} {reason}" for reason, count in certain.most_common()),
        "number_broken": len(broken),
        "broken": "; ".join(broken["id"] + ", " + broken["distance"]),
    }


def _kind(
    report: Report, kind: str, frame: pd.DataFrame, best: Skill | None, headlines: Headlines
) -> tuple[str, ...]:
    """A line of the table of errors."""
    to_text = _points if kind == "accuracies" else _percent
    counted_frame = frame[frame["group"] != "contradicted"]
    is_own = frame["system"] == headlines.systems.get(report.paper)
    predictor = report.evidence.predictor
    part_skills = [
        skill([*frame[is_part]["compared"]], predictor, [best.rule]) if best else None
        for is_part in (is_own, ~is_own)
    ]
    return (
        *(report.paper, kind, str(len(frame)), to_text(median(frame))),
        f"{to_text(median(counted_frame))} ({len(counted_frame)})" if len(counted_frame) < len(frame) else "",
        *((best.rule, f"{to_text(best.trivial)}, {to_text(best.ours)} ({best.n})") if best else ("", "")),
        *(f"{part.value:.2f}" if part else "" for part in (best, *part_skills)),
    )


def _count_table(reports: Sequence[Report]) -> str:
    """What is counted beside the errors; the naive median has what cannot miss among it."""
    rows = []
    for report in reports:
        frame, counts = report.frame, report.frame["group"].value_counts().to_dict()
        naive_frame = frame[frame["error"].notna() & (frame["group"] != "fitted") & (frame["in_points"] == 0)]
        group_size = {name: counts.get(name, 0) for name in ("inside", "kept", "broken", "fitted", "certain")}
        rows.append(
            (
                report.paper,
                _percent(_quantile(report.relative["size"], 0.75)),
                _percent(median(naive_frame)),
                group_size["inside"],
                f"{group_size['broken']} of {group_size['broken'] + group_size['kept']}",
                f"{len(fitted_misses(frame))} of {group_size['fitted']}",
                group_size["certain"],
                counts.get("contradicted", 0),
            )
        )
    headings = ("paper", "p75", "naive median", "inside a range", "bounds broken", "fitted, off by 10%")
    return markdown_table((*headings, "cannot miss", "set aside"), rows)


def _quantile(sizes: pd.Series[float], share: float) -> float | None:
    """The error that a share of them is below."""
    sorted_sizes = sorted(sizes)
    return sorted_sizes[min(len(sorted_sizes) - 1, int(share * len(sorted_sizes)))] if sorted_sizes else None


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _points(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _winners(reports: Sequence[Report], headlines: Headlines) -> str:
    rows = []
    for report in reports:
        all_races = races(report.frame.sort_index()["compared"])
        system, rate = headlines.systems.get(report.paper, ""), one_rate(all_races, report.evidence.predictor)
        by_artifact: dict[str, list[Race]] = {}
        for race in all_races:
            by_artifact.setdefault(race.artifact, []).append(race)
        for name, part in [*by_artifact.items(), *([("all", all_races)] if len(by_artifact) > 1 else [])]:
            our_orders, rate_orders = orders(part, system, our_figure), orders(part, system, rate)
            mistakes = "; ".join(f"{count} {names}" for names, count in our_orders.wrong.most_common(3))
            other_count = sum(our_orders.wrong.values()) - sum(
                count for _, count in our_orders.wrong.most_common(3)
            )
            counts = [f"{side.agree} of {side.pairs}" for side in (our_orders, rate_orders)]
            own_wins = [
                f"{side.first} of {side.races}" if side.races else "" for side in (our_orders, rate_orders)
            ]
            rows.append(
                (
                    report.paper,
                    name,
                    *counts,
                    *own_wins,
                    mistakes + (f"; {other_count} others" if other_count else ""),
                )
            )
    headings = ("paper", "table", "pairs agree", "by one rate", "own system first", "by one rate")
    return markdown_table((*headings, "ours in another order"), rows)


def _verdict_table(reports: Sequence[Report]) -> str:
    """Counts of verdicts over all comparisons that count or bound, and what would decide the open ones."""
    rows = []
    for report in reports:
        frame = _with_figures(report)
        frame = frame[(frame["group"] != "fitted") & (frame["certain"] == "")]
        verdicts, point_tallies = Counter(frame["verdict"]), Counter(frame["point"])
        undecided_comparisons = frame[frame["verdict"] == "undetermined"].sort_index()["compared"]
        needs = Counter(c.decided_by or "nothing that is known" for c in undecided_comparisons)
        counts = (verdicts["holds"], verdicts["fails"], verdicts["undetermined"])
        deciders = "; ".join(f"{count}: {need}" for need, count in needs.most_common(4))
        rows.append((report.paper, *counts, f"{point_tallies['holds']} / {point_tallies['fails']}", deciders))
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
        rows.append((report.paper, len(marks), *(counts.get(mark, 0) for mark in STAND_IN_WORDS)))
    return markdown_table(("paper", "figures", *STAND_IN_WORDS.values()), rows)


def _samples(reports: Sequence[Report]) -> str:
    rows = []
    for report in reports:
        frame = _with_figures(report)
        counts = frame["n"].dropna().astype(int)
        counts = counts[counts > 0]
        extent = (counts.min(), f"{counts.median():g}", counts.max()) if len(counts) else ("", "", "")
        range_counts = [
            sum(all(getattr(figure, kind) for figure in comparison.ours) for comparison in frame["compared"])
            for kind in ("interval", "band")
        ]
        rows.append((report.paper, len(frame), len(counts), *extent, (counts < FEWEST).sum(), *range_counts))
    headings = ("paper", "figures", "rest on texts or rows", "least", "median", "most")
    return markdown_table((*headings, f"on fewer than {FEWEST}", "with interval", "with band"), rows)


def _age(records: Sequence[Record], older_keys: Collection[str]) -> str:
    frame = pd.DataFrame(
        {
            "folder": record.experiment.partition("/")[0],
            "stale": record.key in older_keys,
            "dirty": bool(record.provenance.dirty),
            "commit": record.provenance.commit,
            "date": record.provenance.finished[:10],
        }
        for record in records
    )
    folder_groups = frame.groupby("folder")
    counts = folder_groups.agg(cells=("date", "size"), stale=("stale", "sum"), dirty=("dirty", "sum"))
    counts["commits"] = folder_groups["commit"].nunique()
    counts["dates"] = folder_groups["date"].min() + " to " + folder_groups["date"].max()
    rows = counts.reset_index().itertuples(index=False)
    headings = ("folder", "cells", "made by older components", "with uncommitted changes", "commits")
    return markdown_table((*headings, "computed"), rows)
