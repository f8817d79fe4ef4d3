"""Figures of one workload that differ between committed tables: each has a footnote that says why."""

from __future__ import annotations

import pytest

from repro.core.paths import project_root
from scripts import equal_workloads
from scripts.equal_workloads import Figures, differences


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


@pytest.mark.parametrize(
    ("note", "is_explained"),
    [
        ("lever/fig12 has 50 prompts of 128 tokens in another order.", True),
        ("lever/fig12 has 50 prompts in another order.", False),
        ("lever/fig11 has 50 prompts of 128 tokens in another order.", False),
    ],
)
def test_a_footnote_must_name_the_table_and_every_setting(note: str, is_explained: bool) -> None:
    sides = (("lever/fig10", "lever/fig12"), ("quickstart",))
    tables = {name: Figures({}, (), ()) for name in sides[0]} | {"quickstart": Figures({}, (), [note])}
    settings = ("prompts", "max_tokens", "method.order")
    assert equal_workloads._explained(tables, sides, settings) == is_explained
