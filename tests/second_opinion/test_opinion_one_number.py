"""A baseline is the same number wherever it stands: over all committed tables, by cell and by configuration.

Knows: a cell's key, its values, the configuration that its provenance names, and which cells a figure comes
of. Knows nothing of what any figure means, so ratios and shares are left out: two tables may form them of
different quantities (mllm-NPU's Fig. 14 of speeds, Fig. 15 of energies) and name them alike.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from typing import Any

import pytest

from committed_results import RESULTS, cells, parts

TABLES = sorted(path.parent.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("members.jsonl"))
NAMES = ("labels", "name")
"""What a configuration calls itself by."""


def config(cell: dict[str, Any]) -> str:
    """A cell's settings as a text."""
    settings = {
        name: parts()[part] for name, part in cell["provenance"]["config"].items() if name not in NAMES
    }
    return json.dumps(settings, sort_keys=True)


def test_a_cell_has_the_same_values_in_every_table() -> None:
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for table in TABLES:
        for cell in cells(table):
            found[cell["key"]][table] = cell["values"]
    shared = {key: tables for key, tables in found.items() if len(tables) > 1}
    assert len(shared) > 500
    for key, tables in shared.items():
        first, *others = tables.values()
        assert all(values == first for values in others), f"{key[:12]} differs between {', '.join(tables)}"


def test_one_configuration_has_one_cell() -> None:
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for table in TABLES:
        for cell in cells(table):
            found[config(cell)][cell["key"]] = table
    twice = [tables for tables in found.values() if len(tables) > 1]
    assert len(found) > 1500
    assert not twice, f"{len(twice)} configurations have cells of several versions: {twice[:5]}"


def test_a_figure_of_the_same_cells_is_the_same_in_every_table() -> None:
    found: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for path in sorted(RESULTS.rglob("table.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row.get("cell") and row["ours"] and row["unit"] not in ("x", "%", ""):
                    place = row["cell"], row.get("baseline", ""), row["column"], row["unit"]
                    found[place][path.parent.relative_to(RESULTS).as_posix()] = float(row["ours"])
    shared = {place: tables for place, tables in found.items() if len(tables) > 1}
    assert len(shared) > 50
    for (_, _, column, _), tables in shared.items():
        first, *others = tables.values()
        assert others == pytest.approx([first] * len(others), rel=2e-9), f"{column}: {tables}"
