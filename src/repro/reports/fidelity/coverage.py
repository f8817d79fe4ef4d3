"""How many published values have a figure of ours, by paper and status.

Owns the statuses. Reads comparisons and published cells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from repro.reports.comparison.comparison import Compared
from repro.reports.fidelity.reading import Comparisons
from repro.reports.reference.reference import PublishedCell

STATUSES = {
    "predicted": "a prediction that can miss stands beside it",
    "certain": "a figure that cannot miss, or one that repeats or follows from others",
    "bound": "only a bound is printed; ours stands beside it",
    "contradicted": "the paper's own numbers exclude it (docs/errata.md); ours stands beside it",
    "fitted": "ours was used in a fit or follows from one",
    "elsewhere": "only a figure for another workload or model stands beside it",
    "absent": "a table or page says why there is none",
    "model": "the paper's model is not at hand, nor a stand-in of its size",
    "unnamed": "no table names it",
}
"""What may be the case of a published value, with explanations."""


def status(
    cell: PublishedCell, one: Compared | None, found: Comparisons, missing_models: Iterable[str]
) -> str:
    """The status of one published value; `one` may be a comparison with the earlier version's same value."""
    if one is not None and one.ours:
        if one.fitted:
            return "fitted"
        if one.certain:
            return "bound" if one.published.bound else "certain"
        if one.cell.contradicted:
            return "contradicted"
        return "bound" if one.published.bound else "predicted"
    if cell.determined:
        return "fitted"
    if cell.metric.startswith("accuracy") and cell.model in missing_models:
        return "model"
    line = found.nearest.get(cell.id) or found.nearest.get(cell.same_as)
    if line is not None and line["ours"]:
        return "elsewhere"
    return "absent" if one is not None or line is not None else "unnamed"


def coverage(
    cells: Mapping[str, PublishedCell], found: Comparisons, missing_models: Iterable[str]
) -> dict[str, Counter[str]]:
    """Counts of statuses by paper."""
    by_id, missing = found.by_id(), tuple(missing_models)
    counts: dict[str, Counter[str]] = {}
    for cell in cells.values():
        own = counts.setdefault(cell.paper, Counter())
        one = by_id.get(cell.id) or by_id.get(cell.same_as)
        own[status(cell, one, found, missing)] += 1
    return counts


def unnamed(cells: Mapping[str, PublishedCell], found: Comparisons) -> list[str]:
    """Published values that no table names."""
    by_id = found.by_id()
    return [name for name in cells if name not in by_id and name not in found.nearest]
