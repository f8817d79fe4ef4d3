"""Comparisons as one pandas frame, a row each: what all pages over them filter, group and count.

Owns its columns, and what is counted where. Must not know pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from repro.libraries import pd
from repro.reports.comparison.comparison import POINT_LIMIT, Comparison, family

FITTED_MISS = 0.10
"""Relative error above which a fitted figure is listed."""

MEDIAN_SENTENCES = {
    0: "Against the paper, over {n} that can miss: median error {median:.1%}, worst {worst:.1%} ({id}).",
    1: "Accuracies, over {n} that can miss: median difference {median:.1f} points, most {worst:.1f} ({id}).",
}
"""What is said of errors, relative ones and those in points."""

GROUPS = {
    "relative": "counted, with a relative error",
    "points": "counted, with an error in points of an accuracy",
    "inside": "in a published range",
    "kept": "a bound that is met",
    "broken": "a bound that is not met",
    "fitted": "used in a fit or determined by one",
    "contradicted": "the paper's own numbers exclude the printed value",
    "certain": "cannot miss",
    "absent": "without a figure of ours",
}
"""How comparisons count; each is in one group."""

COUNTED_GROUPS = ("relative", "points")
WORST_FIRST_GROUPS = (*COUNTED_GROUPS, "fitted", "contradicted")

SCHEMA: Mapping[str, tuple[str, Callable[[Comparison], Any]]] = {
    "id": ("of the published value", lambda c: c.cell.id),
    "paper": ("that prints it", lambda c: c.cell.paper),
    "system": ("that it is of, as the paper names it", lambda c: c.cell.system),
    "table": ("where ours stands", lambda c: c.table),
    "row": ("its id", lambda c: c.row),
    "column": ("its key", lambda c: c.column),
    "family": ("of its metric", lambda c: family(c.cell)),
    "unit": ("of both", lambda c: c.unit),
    "ours": ("our figure; of a range the least", lambda c: c.ours[0].value if c.ours else None),
    "ours_high": ("of a range the most", lambda c: c.ours[1].value if len(c.ours) > 1 else None),
    "low": ("of the interval of a single figure", lambda c: _interval(c)[0]),
    "high": ("its upper end", lambda c: _interval(c)[1]),
    "n": ("distinct texts, rows or requests", lambda c: c.n),
    "published_low": ("None of an upper bound", lambda c: c.published.low),
    "published_high": ("None of a lower bound", lambda c: c.published.high),
    "error": ("relative, or in points; None of a bound", lambda c: c.error),
    "in_points": ("whether it is in points", lambda c: int(c.in_points)),
    "group": ("of GROUPS", lambda c: group(c)),
    "verdict": ("over interval and band", lambda c: c.verdict),
    "point": ("the verdict on our figure alone", lambda c: c.point),
    "certain": ('why it cannot miss, or ""', lambda c: c.certain),
    "distance": ("in words", lambda c: c.distance),
    "missed": ("whether it needs a reason", lambda c: c.is_miss),
    "can_miss": ("whether its error counts, or would if the value were not set aside", lambda c: _counts(c)),
    "marks": ("keys of MARKS", lambda c: c.marks),
    "compared": ("all of it", lambda c: c),
}
"""The columns: what each says, and how it follows from a comparison."""


def to_frame(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """The comparisons by group, the worst first where errors count; the index has their given order."""
    rows = [[value(comparison) for _, value in SCHEMA.values()] for comparison in comparisons]
    frame = pd.DataFrame(rows, columns=[*SCHEMA], dtype=object)
    frame = frame.astype({"missed": bool, "can_miss": bool})
    frame["size"] = frame["error"].astype(float).abs()
    by_size = frame["group"].isin(WORST_FIRST_GROUPS)
    order = {"group": frame["group"].map([*GROUPS].index), "size": -frame["size"].fillna(0).where(by_size, 0)}
    order |= {name: frame[name].where(by_size, "") for name in ("id", "table", "row")}
    return frame.loc[pd.DataFrame(order).sort_values([*order], kind="stable").index]


def _interval(comparison: Comparison) -> tuple[float | None, float | None]:
    return (comparison.ours[0].interval if len(comparison.ours) == 1 else None) or (None, None)


def _counts(c: Comparison) -> bool:
    group_name = group(c)
    return group_name in COUNTED_GROUPS or (
        group_name == "contradicted" and c.error is not None and not c.inside
    )


def group(comparison: Comparison) -> str:
    """How a comparison counts."""
    if not comparison.ours:
        return "absent"
    if comparison.is_fitted:
        return "fitted"
    if comparison.certain:
        return "certain"
    if comparison.cell.contradicted:
        return "contradicted"
    if comparison.published.bound:
        return "broken" if comparison.breaks_bound else "kept"
    if comparison.inside:
        return "inside"
    if comparison.error is None:
        return "certain"
    return "points" if comparison.in_points else "relative"


def median(frame: pd.DataFrame) -> float | None:
    """Median of the errors' sizes; None of none."""
    sizes = frame["size"].dropna()
    return float(sizes.median()) if len(sizes) else None


def of_group(frame: pd.DataFrame, *groups: str) -> pd.DataFrame:
    """The comparisons of these groups."""
    return frame[frame["group"].isin(groups)]


def fitted_misses(frame: pd.DataFrame) -> pd.DataFrame:
    """Fitted ones that are off by more than a tenth, or more points than agree."""
    least_miss = frame["in_points"].map({0: FITTED_MISS, 1: POINT_LIMIT})
    return frame[(frame["group"] == "fitted") & (frame["size"] > least_miss)]


def sentences(frame: pd.DataFrame) -> list[str]:
    """The counts and errors in sentences, for the notes of a page."""
    can_miss, tallies = frame[frame["can_miss"]], frame["group"].value_counts()
    lines = [*_medians(can_miss)]
    if set_aside_count := tallies.get("contradicted", 0):
        rest_median = median(of_group(frame, "relative"))
        lines.append(
            f"Of {_times(set_aside_count, 'figure')} the paper's own numbers exclude the printed value "
            "(results/errata.md)"
            + ("." if rest_median is None else f"; without them the median error is {rest_median:.1%}.")
        )
    group_words = {"inside": "inside a published range", "kept": "bound met", "broken": "bound broken"}
    group_words["fitted"] = "fitted"
    if other_counts := [f"{tallies[name]} {word}" for name, word in group_words.items() if name in tallies]:
        lines.append(f"Apart from these: {', '.join(other_counts)}.")
    if len(misses := fitted_misses(frame)):
        texts = ", ".join(misses["id"][:5] + " (" + misses["distance"][:5] + ")")
        more = f" and {len(misses) - 5} more" if len(misses) > 5 else ""
        lines.append(
            f"Fitted and yet off by more than {FITTED_MISS:.0%}, or {POINT_LIMIT:.0f} points: {texts}{more}."
        )
    reasons = of_group(frame, "certain")["certain"].replace("", "printed as 0, so that no ratio exists")
    tally = reasons.groupby(reasons, sort=False).size()
    return lines + [f"Cannot miss and not counted: {count} ({reason})." for reason, count in tally.items()]


def _medians(can_miss: pd.DataFrame) -> Iterator[str]:
    """A sentence on each kind of errors."""
    for in_points, sentence in MEDIAN_SENTENCES.items():
        kind_frame = can_miss[can_miss["in_points"] == in_points]
        if len(kind_frame):
            top_row = kind_frame.sort_values("size", ascending=False, kind="stable").iloc[0]
            count = _times(len(kind_frame), "figure")
            yield sentence.format(n=count, median=median(kind_frame), worst=top_row["size"], id=top_row["id"])


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
