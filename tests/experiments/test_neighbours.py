"""No table has its neighbour's published value: names of places and of published values fit as they stand.

A place is a row's id or a column's key; a published value has an id, and a model, dataset, device, system.
Both come from people who read the paper, in different files, so that a slip in joining them shows: two values
would then share more letters with their places if they were exchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import combinations

import pytest

from experiment_files import names, section, table
from repro.reports.reference.reference import PublishedCell, load_cells
from repro.reports.spec.spec import TableSpec

PAIRS = {"edgellm": 200, "elastilm": 5, "ghidorah": 20, "lever": 100, "mllm_npu": 1000}
"""At least so many pairs of a paper are compared."""


def threes(text: str) -> frozenset[str]:
    """All runs of three letters or digits."""
    plain = re.sub(r"[^a-z0-9]", "", text.lower())
    return frozenset(plain[i : i + 3] for i in range(len(plain) - 2))


def fit(place: str, cell: PublishedCell) -> int:
    """How many runs of letters a place shares with what a published value says of itself."""
    own = cell.id.split(".", 2)[-1], cell.dataset, cell.model, cell.device, cell.system, cell.condition
    return len(threes(place) & threes(" ".join(own)))


def neighbours(spec: TableSpec) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Pairs of (place, id) in a column, and in a row."""
    rows: dict[str, dict[str, str]] = {}
    for column in spec.columns:
        yield from combinations(column.reference.items(), 2)
        for row, published in column.reference.items():
            rows.setdefault(row, {})[column.key] = published
    for row in rows.values():
        yield from combinations(row.items(), 2)


def exchanged(spec: TableSpec, cells: Mapping[str, PublishedCell]) -> tuple[int, list[str]]:
    """How many pairs in one unit and metric there are, and those that would fit better exchanged."""
    compared, wrong = 0, []
    for (place, one), (other, two) in neighbours(spec):
        first, second = cells[one], cells[two]
        if (first.unit, first.metric) != (second.unit, second.metric) or one == two:
            continue
        compared += 1
        if fit(place, first) + fit(other, second) < fit(place, second) + fit(other, first):
            wrong.append(f"{spec.experiment}: {place} has {one}, {other} has {two}")
    return compared, wrong


@pytest.mark.parametrize("paper", PAIRS)
def test_no_two_published_values_fit_better_exchanged(paper: str) -> None:
    cells, compared = load_cells(), 0
    for name in names(paper):
        if not section(paper, name):
            count, wrong = exchanged(table(paper, name), cells)
            assert wrong == []
            compared += count
    assert compared >= PAIRS[paper]
