"""What cannot miss: rules over comparisons, applied to all that a page has at once.

Owns these rules. They read published cells and figures, and name no table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from repro.core.digits import in_ten_digits
from repro.reports.comparison.comparison import Comparison

LOSSLESS = "lossless: the target's own text, checked in every run"
WIDTH_ONE = "a verification of one token emits exactly one"
COUNT = "a count that the configuration states"
REPEATED = "repeated: the same printed value beside the same figure"
DERIVED = "derived: it follows from figures that are compared themselves"

RELATIVE_TOLERANCE = 1e-6
"""Largest relative difference of a figure from what it is derived as."""


def _lossless(c: Comparison) -> bool:
    is_full = c.published.low == c.published.high == 100.0
    return c.cell.metric == "rouge_l" and is_full and all(figure.value == 100.0 for figure in c.ours)


def _width_one(c: Comparison) -> bool:
    has_width_one = c.cell.conditions.get("width") == "1"
    return c.cell.metric == "acceptance_length" and has_width_one and all(f.value == 1.0 for f in c.ours)


def _count(c: Comparison) -> bool:
    return c.cell.unit in ("subgraphs", "layers", "domains", "runs", "lines", "types")


CONSTRUCTION_RULES: Mapping[str, Callable[[Comparison], bool]] = {
    LOSSLESS: _lossless,
    WIDTH_ONE: _width_one,
    COUNT: _count,
}
"""Rules about one comparison, by what they say."""


def find_certain(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons with `certain` set where a rule says that they cannot miss.

    They are all that a page counts, those that shall count first before their repetitions.
    """
    singles = _singles(comparisons)
    identities: set[tuple[object, ...]] = set()
    results = []
    for comparison in comparisons:
        identity = _identity(comparison)
        reason = comparison.certain or _reason(comparison, singles, identity in identities)
        identities.add(identity)
        results.append(replace(comparison, certain=reason))
    return results


def _reason(comparison: Comparison, singles: Mapping[str, Sequence[Comparison]], is_repeated: bool) -> str:
    if not comparison.ours:
        return ""
    for reason, rule in CONSTRUCTION_RULES.items():
        if rule(comparison):
            return reason
    return REPEATED if is_repeated else DERIVED if _is_derived(comparison, singles) else ""


def _identity(comparison: Comparison) -> tuple[object, ...]:
    """Equal for comparisons of the same printed value with the same figure of a paper."""
    paper = comparison.cell.paper.removesuffix("_v2")
    return (
        paper,
        comparison.unit,
        comparison.published.low,
        comparison.published.high,
        *(in_ten_digits(f.value) for f in comparison.ours),
    )


def _singles(comparisons: Iterable[Comparison]) -> dict[str, list[Comparison]]:
    """Comparisons that can count of single cells' own figures, by the cell."""
    by_cell: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        is_single = len(comparison.cells) == len(comparison.ours) == 1 and not comparison.baseline
        if is_single and not comparison.published.bound:
            by_cell.setdefault(comparison.cells[0], []).append(comparison)
    return by_cell


def _is_derived(comparison: Comparison, singles: Mapping[str, Sequence[Comparison]]) -> bool:
    """Whether ours is a ratio, difference or mean of figures that are compared themselves, in one metric."""
    keys = (*comparison.cells, *comparison.baseline)
    if len(comparison.ours) != 1 or len({*keys}) < 2:
        return False
    our_value, paper = comparison.ours[0].value, comparison.cell.paper
    groups = [[c for c in singles.get(key, ()) if c.cell.paper == paper] for key in keys]
    metrics = set.intersection(*({c.cell.metric for c in part} for part in groups)) if all(groups) else set()
    for metric in metrics:
        values = [next(c for c in part if c.cell.metric == metric).ours[0].value for part in groups]
        numbers, bases = values[: len(comparison.cells)], values[len(comparison.cells) :]
        if any(
            math.isclose(our_value, mean, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-9)
            for mean in _combine(numbers, bases)
        ):
            return True
    return False


def _combine(values: Sequence[float], base_values: Sequence[float]) -> list[float]:
    """Means of figures, or of what compares them with the others one by one."""
    if not base_values:
        return _means(values)
    if len(base_values) == 1:
        base_values = [*base_values] * len(values)
    if len(values) != len(base_values):
        return []
    pairs = list(zip(values, base_values, strict=True))
    series: list[list[float]] = [[a - b for a, b in pairs]]
    if all(a and b for a, b in pairs):
        ratios = [a / b for a, b in pairs]
        series += [ratios, [1 / ratio for ratio in ratios]]
        series += [
            [sign * 100 * (1 - ratio) for ratio in terms] for terms, sign in product(series[1:], (1, -1))
        ]
    return [mean for terms in series for mean in _means(terms)]


def _means(values: Sequence[float]) -> list[float]:
    means = [sum(values) / len(values)]
    if all(value > 0 for value in values):
        means.append(math.exp(sum(map(math.log, values)) / len(values)))
    return means
