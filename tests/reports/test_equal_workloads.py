"""Figures of one workload that differ between committed tables: each has a footnote that says why."""

from __future__ import annotations

from repro.core.paths import project_root
from scripts.equal_workloads import differences


def test_every_difference_has_a_footnote() -> None:
    """One is that of LEVER on the OnePlus 12, Qwen3-8B, HumanEval, on the first page and in Fig. 10."""
    found = differences(project_root() / "results")
    assert [str(each) for each in found if not each.explained] == []
    workload = " lever OnePlus 12 Qwen3-8B humaneval"
    (quickstart,) = (
        each
        for each in found
        if ("quickstart",) in each.tables and "lever/fig10" in each.tables[0] and workload in str(each)
    )
    assert quickstart.settings == ("draft", "engine", "max_tokens", "prompts")
