"""Figures of one workload that differ between committed tables: each has a footnote that says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from repro.core.paths import project_root
from repro.reports.spec.spec import TableSpec
from scripts import equal_workloads
from scripts.equal_workloads import Difference, differences

SETTINGS = ("draft", "engine", "max_tokens", "prompts")


def quickstart(found: list[Difference]) -> Difference:
    """LEVER on the OnePlus 12, Qwen3-8B, HumanEval, in both tables."""
    (one,) = [
        one
        for one in found
        if ("quickstart",) in one.tables and "lever/fig10" in one.tables[0] and " lever OnePlus" in str(one)
    ]
    return one


def test_every_difference_has_a_footnote() -> None:
    found = differences(project_root() / "results")
    assert [str(one) for one in found if not one.explained] == []
    assert quickstart(found).settings == SETTINGS
    assert "lever/fig10" in quickstart(found).tables[0]


def test_without_footnotes_the_first_page_contradicts_lever(monkeypatch: pytest.MonkeyPatch) -> None:
    expand = equal_workloads.expand

    def bare(experiment: str, section: Mapping[str, Any], content: Mapping[str, Any]) -> TableSpec:
        return replace(expand(experiment, section, content), footnotes=("Emulated.",))

    monkeypatch.setattr(equal_workloads, "expand", bare)
    found = differences(project_root() / "results")
    assert not any(one.explained for one in found)
    one = quickstart(found)
    assert one.settings == SETTINGS
    assert " lever OnePlus 12 Qwen3-8B humaneval" in str(one)


def test_a_footnote_must_name_the_table_and_every_setting() -> None:
    sides = (("lever/fig10", "lever/fig12"), ("quickstart",))

    def explained(note: str) -> bool:
        tables = {name: equal_workloads.Figures({}, (), ()) for name in sides[0]}
        tables["quickstart"] = equal_workloads.Figures({}, (), [note])
        return equal_workloads._explained(tables, sides, ("prompts", "max_tokens", "method.order"))

    assert explained("lever/fig12 has 50 prompts of 128 tokens in another order.")
    assert not explained("lever/fig12 has 50 prompts in another order.")
    assert not explained("lever/fig11 has 50 prompts of 128 tokens in another order.")
