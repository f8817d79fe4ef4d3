"""What cannot miss: rules over comparisons, applied to all that a page has at once.

Owns these rules. They read published cells and figures, and name no table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from repro.core.digits import in_ten_digits
from repro.reports.comparison.comparison import Compared

LOSSLESS = "lossless: the target's own text, checked in every run"
WIDTH_ONE = "a verification of one token emits exactly one"
COUNT = "a count that the configuration states"
REPEATED = "repeated: the same printed value beside the same figure"
DERIVED = "derived: it follows from figures that are compared themselves"

CLOSE = 1e-6
"""Largest relative difference of a figure from what it is derived as."""


def _lossless(one: Compared) -> bool:
    full = one.published.low == one.published.high == 100.0
    return one.cell.metric == "rouge_l" and full and all(figure.value == 100.0 for figure in one.ours)


def _width_one(one: Compared) -> bool:
    narrow = one.cell.conditions.get("width") == "1"
    return one.cell.metric == "acceptance_length" and narrow and all(f.value == 1.0 for f in one.ours)


def _count(one: Compared) -> bool:
    return one.cell.unit in ("subgraphs", "layers", "domains", "runs", "lines", "types")


BY_CONSTRUCTION: Mapping[str, Callable[[Compared], bool]] = {
    LOSSLESS: _lossless,
    WIDTH_ONE: _width_one,
    COUNT: _count,
}
"""Rules about one comparison, by what they say."""


def settled(comparisons: Sequence[Compared]) -> list[Compared]:
    """The comparisons with `certain` set where a rule says that they cannot miss.

    They are all that a page counts, those that shall count first before their repetitions.
    """
    singles = _singles(comparisons)
    seen: set[tuple[object, ...]] = set()
    found = []
    for one in comparisons:
        why = one.certain or _why(one, singles, seen)
        seen.add(_identity(one))
        found.append(replace(one, certain=why))
    return found


def _why(one: Compared, singles: Mapping[str, Sequence[Compared]], seen: set[tuple[object, ...]]) -> str:
    if not one.ours:
        return ""
    said = next((words for words, rule in BY_CONSTRUCTION.items() if rule(one)), "")
    if said:
        return said
    if _identity(one) in seen:
        return REPEATED
    return DERIVED if _derived(one, singles) else ""


def _identity(one: Compared) -> tuple[object, ...]:
    """Equal for comparisons of the same printed value with the same figure of a paper."""
    version = one.cell.paper.removesuffix("_v2")
    return (
        version,
        one.unit,
        one.published.low,
        one.published.high,
        *(in_ten_digits(f.value) for f in one.ours),
    )


def _singles(comparisons: Iterable[Compared]) -> dict[str, list[Compared]]:
    """Comparisons that can count of single cells' own figures, by the cell."""
    found: dict[str, list[Compared]] = {}
    for one in comparisons:
        if len(one.cells) == 1 and not one.baseline and len(one.ours) == 1 and not one.published.bound:
            found.setdefault(one.cells[0], []).append(one)
    return found


def _derived(one: Compared, singles: Mapping[str, Sequence[Compared]]) -> bool:
    """Whether ours is a ratio, difference or mean of figures that are compared themselves, in one metric."""
    if len(one.ours) != 1 or len({*one.cells, *one.baseline}) < 2:
        return False
    ours, paper = one.ours[0].value, one.cell.paper
    own = [[s for s in singles.get(key, ()) if s.cell.paper == paper] for key in (*one.cells, *one.baseline)]
    metrics = set.intersection(*({s.cell.metric for s in some} for some in own)) if all(own) else set()
    for metric in metrics:
        values = [next(s for s in some if s.cell.metric == metric).ours[0].value for some in own]
        first, second = values[: len(one.cells)], values[len(one.cells) :]
        if any(math.isclose(ours, made, rel_tol=CLOSE, abs_tol=1e-9) for made in _made(first, second)):
            return True
    return False


def _made(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Means of figures, or of what compares them with the others one by one."""
    if not second:
        return _means(first)
    if len(second) == 1:
        second = [*second] * len(first)
    if len(first) != len(second):
        return []
    pairs = list(zip(first, second, strict=True))
    ways: list[list[float]] = [[a - b for a, b in pairs]]
    if all(a and b for a, b in pairs):
        ratios = [a / b for a, b in pairs]
        ways += [ratios, [1 / ratio for ratio in ratios]]
        ways += [[sign * 100 * (1 - ratio) for ratio in way] for way, sign in product(ways[1:], (1, -1))]
    return [mean for way in ways for mean in _means(way)]


def _means(values: Sequence[float]) -> list[float]:
    found = [sum(values) / len(values)]
    if all(value > 0 for value in values):
        found.append(math.exp(sum(map(math.log, values)) / len(values)))
    return found
