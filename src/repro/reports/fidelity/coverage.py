"""How many published values have a figure of ours, by paper and status.

Owns the statuses. Reads comparisons and published cells.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from repro.core.libraries import pd
from repro.reports.comparison.comparison import Compared
from repro.reports.comparison.frame import group
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


def coverage(
    cells: Mapping[str, PublishedCell], found: Comparisons, missing_models: Collection[str]
) -> pd.DataFrame:
    """Counts of statuses (columns) by paper (rows, in the order of the cells)."""
    by_id = found.by_id()
    statuses = [_status(cell, _beside(by_id, cell), found, missing_models) for cell in cells.values()]
    papers = [cell.paper for cell in cells.values()]
    counts = pd.crosstab(pd.Series(papers), pd.Series(statuses))
    return counts.reindex(index=[*dict.fromkeys(papers)], columns=[*STATUSES], fill_value=0)


def _beside(by_id: Mapping[str, Compared], cell: PublishedCell) -> Compared | None:
    """The comparison with a published value, or with the earlier version's same one."""
    return by_id.get(cell.id) or by_id.get(cell.same_as)


def _status(
    cell: PublishedCell, one: Compared | None, found: Comparisons, missing_models: Collection[str]
) -> str:
    if one is not None and one.ours:
        counts = group(one)
        return counts if counts in ("fitted", "contradicted") else _of_figure(one)
    if cell.determined:
        return "fitted"
    if cell.metric.startswith("accuracy") and cell.model in missing_models:
        return "model"
    if found.nearest.get(cell.id) or found.nearest.get(cell.same_as):
        return "elsewhere"
    is_named = one is not None or {cell.id, cell.same_as} & found.nearest.keys()
    return "absent" if is_named else "unnamed"


def _of_figure(one: Compared) -> str:
    if one.published.bound:
        return "bound"
    return "certain" if one.certain else "predicted"


def unnamed(cells: Mapping[str, PublishedCell], found: Comparisons) -> list[str]:
    """Published values that no table names."""
    named = {*found.frame["id"], *found.nearest}
    return [name for name in cells if name not in named]
