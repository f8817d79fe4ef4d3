"""Outcomes are what their keys promise: one that changed under the same key lacks a new version."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from faults import dearer_launches, longer_groups, shorter_paths
from tiny_outcomes import (
    COMMITTED,
    Outcome,
    cells,
    complaint,
    dataset_outcomes,
    metric_outcomes,
    of_cell,
    ours,
    project_in,
    runs_code,
)

GROUPS = ("compression", "method", "metric", "probe", "service")
ENTRIES: dict[str, dict[str, Any]] = json.loads(COMMITTED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The configuration of every component that makes a cell, on the tiny model."""
    return cells(project_in(tmp_path_factory.mktemp("outcomes")))


@cache
def without_cells() -> dict[str, Outcome]:
    return dict((*metric_outcomes(), *dataset_outcomes()))


def outcome(name: str, configs: dict[str, dict[str, Any]]) -> Outcome:
    return of_cell(configs[name]) if name in configs else without_cells()[name]


@pytest.mark.parametrize("name", ENTRIES)
def test_it_is_as_committed(name: str, configs: dict[str, dict[str, Any]]) -> None:
    said = complaint(name, ENTRIES[name], outcome(name, configs))
    assert said is None, said


def test_every_component_has_an_outcome() -> None:
    expected = {f"{group} {name}" for group in GROUPS for name in ours(group)}
    expected -= {f"metric {name}" for name in ours("metric") if runs_code(name)}
    assert expected <= ENTRIES.keys(), "run `python tests/tiny_outcomes.py --write`"
    lost = {name for name in ENTRIES.keys() - expected if not name.startswith(("dataset ", "trace "))}
    assert not lost, "no such component any more: run `python tests/tiny_outcomes.py --write`"


@pytest.mark.parametrize(
    ("name", "change", "version"),
    [
        ("method flash_ar", dearer_launches, "cost model 1"),
        ("method chain_sd", shorter_paths, "model runtime 1"),
        ("compression per_group", longer_groups, "compression per_group 1"),
    ],
)
def test_a_change_without_a_new_version_is_found(
    name: str,
    change: Callable[[pytest.MonkeyPatch], None],
    version: str,
    configs: dict[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change(monkeypatch)
    said = complaint(name, ENTRIES[name], outcome(name, configs))
    assert said is not None
    assert said.startswith(f"the outcome of {name} changed (")
    assert version in said


def test_a_raised_version_asks_for_a_new_outcome(configs: dict[str, dict[str, Any]]) -> None:
    made = outcome("metric acceptance", configs)
    raised = replace(made, key="0" * 64, versions={"metric acceptance": 2})
    said = complaint("metric acceptance", ENTRIES["metric acceptance"], raised)
    assert said is not None
    assert said.startswith(
        "metric acceptance has another key (metric acceptance changed); run `python tests/"
    )
