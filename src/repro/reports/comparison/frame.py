"""Comparisons as one pandas frame, a row each: what all pages over them filter, group and count.

Owns its columns, and what is counted where. Must not know pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from repro.libraries import pd
from repro.reports.comparison.comparison import POINTS, Compared, family

FITTED_MISS = 0.10
"""Relative error above which a fitted figure is listed."""

MEDIANS = {
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

COUNTED = ("relative", "points")
WORST_FIRST = (*COUNTED, "fitted", "contradicted")

SCHEMA: Mapping[str, tuple[str, Callable[[Compared], Any]]] = {
    "id": ("of the published value", lambda one: one.cell.id),
    "paper": ("that prints it", lambda one: one.cell.paper),
    "system": ("that it is of, as the paper names it", lambda one: one.cell.system),
    "table": ("where ours stands", lambda one: one.table),
    "row": ("its id", lambda one: one.row),
    "column": ("its key", lambda one: one.column),
    "family": ("of its metric", lambda one: family(one.cell)),
    "unit": ("of both", lambda one: one.unit),
    "ours": ("our figure; of a range the least", lambda one: one.ours[0].value if one.ours else None),
    "ours_high": ("of a range the most", lambda one: one.ours[1].value if len(one.ours) > 1 else None),
    "low": ("of the interval of a single figure", lambda one: _interval(one)[0]),
    "high": ("its upper end", lambda one: _interval(one)[1]),
    "n": ("distinct texts, rows or requests", lambda one: one.n),
    "published_low": ("None of an upper bound", lambda one: one.published.low),
    "published_high": ("None of a lower bound", lambda one: one.published.high),
    "error": ("relative, or in points; None of a bound", lambda one: one.error),
    "in_points": ("whether it is in points", lambda one: int(one.in_points)),
    "group": ("of GROUPS", lambda one: group(one)),
    "verdict": ("over interval and band", lambda one: one.verdict),
    "point": ("the verdict on our figure alone", lambda one: one.point),
    "certain": ('why it cannot miss, or ""', lambda one: one.certain),
    "distance": ("in words", lambda one: one.distance),
    "missed": ("whether it needs a reason", lambda one: one.missed),
    "can_miss": ("whether its error counts, or would if the value were not set aside", lambda one: _can(one)),
    "marks": ("keys of MARKS", lambda one: one.marks),
    "compared": ("all of it", lambda one: one),
}
"""The columns: what each says, and how it follows from a comparison."""


def framed(comparisons: Sequence[Compared]) -> pd.DataFrame:
    """The comparisons by group, the worst first where errors count; the index has their given order."""
    rows = [[value(one) for _, value in SCHEMA.values()] for one in comparisons]
    frame = pd.DataFrame(rows, columns=[*SCHEMA], dtype=object)
    frame = frame.astype({"missed": bool, "can_miss": bool})
    frame["size"] = frame["error"].astype(float).abs()
    worst = frame["group"].isin(WORST_FIRST)
    order = {"group": frame["group"].map([*GROUPS].index), "size": -frame["size"].fillna(0).where(worst, 0)}
    order |= {name: frame[name].where(worst, "") for name in ("id", "table", "row")}
    return frame.loc[pd.DataFrame(order).sort_values([*order], kind="stable").index]


def _interval(one: Compared) -> tuple[float | None, float | None]:
    return (one.ours[0].interval if len(one.ours) == 1 else None) or (None, None)


def _can(one: Compared) -> bool:
    counts = group(one)
    return counts in COUNTED or (counts == "contradicted" and one.error is not None and not one.inside)


def group(one: Compared) -> str:
    """How a comparison counts."""
    if not one.ours:
        return "absent"
    if one.fitted:
        return "fitted"
    if one.certain:
        return "certain"
    if one.cell.contradicted:
        return "contradicted"
    if one.published.bound:
        return "broken" if one.broken else "kept"
    if one.inside:
        return "inside"
    if one.error is None:
        return "certain"
    return "points" if one.in_points else "relative"


def median(frame: pd.DataFrame) -> float | None:
    """Median of the errors' sizes; None of none."""
    sizes = frame["size"].dropna()
    return float(sizes.median()) if len(sizes) else None


def of_group(frame: pd.DataFrame, *groups: str) -> pd.DataFrame:
    """The comparisons of these groups."""
    return frame[frame["group"].isin(groups)]


def fitted_misses(frame: pd.DataFrame) -> pd.DataFrame:
    """Fitted ones that are off by more than a tenth, or more points than agree."""
    least = frame["in_points"].map({0: FITTED_MISS, 1: POINTS})
    return frame[(frame["group"] == "fitted") & (frame["size"] > least)]


def sentences(frame: pd.DataFrame) -> list[str]:
    """The counts and errors in sentences, for the notes of a page."""
    every, counts = frame[frame["can_miss"]], frame["group"].value_counts()
    said = [*_medians(every)]
    if aside := counts.get("contradicted", 0):
        without = median(of_group(frame, "relative"))
        said.append(
            f"Of {_times(aside, 'figure')} the paper's own numbers exclude the printed value "
            "(results/errata.md)"
            + ("." if without is None else f"; without them the median error is {without:.1%}.")
        )
    words = {"inside": "inside a published range", "kept": "bound met", "broken": "bound broken"}
    words["fitted"] = "fitted"
    if others := [f"{counts[name]} {word}" for name, word in words.items() if name in counts]:
        said.append(f"Apart from these: {', '.join(others)}.")
    if len(misses := fitted_misses(frame)):
        off = ", ".join(misses["id"][:5] + " (" + misses["distance"][:5] + ")")
        more = f" and {len(misses) - 5} more" if len(misses) > 5 else ""
        said.append(
            f"Fitted and yet off by more than {FITTED_MISS:.0%}, or {POINTS:.0f} points: {off}{more}."
        )
    why = of_group(frame, "certain")["certain"].replace("", "printed as 0, so that no ratio exists")
    tally = why.groupby(why, sort=False).size()
    return said + [f"Cannot miss and not counted: {count} ({reason})." for reason, count in tally.items()]


def _medians(every: pd.DataFrame) -> Iterator[str]:
    """A sentence on each kind of errors."""
    for in_points, sentence in MEDIANS.items():
        some = every[every["in_points"] == in_points]
        if len(some):
            worst = some.sort_values("size", ascending=False, kind="stable").iloc[0]
            count = _times(len(some), "figure")
            yield sentence.format(n=count, median=median(some), worst=worst["size"], id=worst["id"])


def _times(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
