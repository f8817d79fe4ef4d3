"""Two drafts compared from records: pairs of prompts, totals over totals, an interval that can tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from records import provenance
from repro.core.errors import InputError
from repro.records.record import Record
from repro.records.results import Results
from workshop.studies import compare_drafts


def put(store: Results, key: str, draft: str, dataset: str, emitted: list[list[int]]) -> None:
    """A finished cell whose request i has these tokens a verification."""
    labels = {"draft": draft, "dataset": dataset, "method": "chain_sd"}
    rounds = [
        {"request": f"{dataset}/{i}", "round": k, "rows": 9, "emitted": n}
        for i, numbers in enumerate(emitted)
        for k, n in enumerate(numbers)
    ]
    store.put(Record(key * 8, "drafts", labels, "done", {}, provenance()), rounds)


@pytest.fixture
def store(tmp_path: Path) -> Results:
    made = Results(tmp_path / "results")
    put(made, "a", "head", "humaneval", [[4, 2], [3, 3], [6]])
    put(made, "b", "small", "humaneval", [[2, 2, 2], [3, 3], [1, 5]])
    put(made, "c", "head", "gsm8k", [[2, 2]])
    put(made, "d", "small", "gsm8k", [[4]])
    return made


def test_totals_over_totals_of_pairs(store: Results) -> None:
    groups = compare_drafts.paired(store, "drafts", ["head", "small"], "chain_sd")
    assert list(groups) == ["gsm8k", "humaneval"]
    assert groups["humaneval"][0] == compare_drafts.Prompt((6, 6), (2, 3))
    one = compare_drafts.compared([groups["humaneval"]], 200, 0)
    assert (one.prompts, one.first, one.second) == (3, 18 / 5, 18 / 7)
    assert 0 <= one.low < one.first - one.second < one.high
    both = compare_drafts.compared(list(groups.values()), 200, 0)
    assert (both.first, both.second) == (22 / 7, 22 / 8)


def test_the_interval_of_a_steady_difference_leaves_zero_out() -> None:
    steady = [compare_drafts.Prompt((12, 12), (4, 6))] * 5
    one = compare_drafts.compared([steady], 100, 0)
    assert one.low == one.high == 1.0


def test_table_and_file(store: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "drafts.json"
    options = ["--drafts", "head", "small", "--draws", "50", "--out", str(out)]
    compare_drafts.main(["--results", str(tmp_path / "results"), *options])
    assert "| humaneval (3) | 3.60 | 2.57 | +1.03 |" in capsys.readouterr().out
    assert json.loads(out.read_text(encoding="utf-8"))["acceptance_length"]["all"]["prompts"] == 4


def test_wrong_pairs_are_named(store: Results) -> None:
    with pytest.raises(InputError, match="nobody"):
        compare_drafts.paired(store, "drafts", ["head", "nobody"], "chain_sd")
    put(store, "e", "head", "humaneval", [[1]])
    with pytest.raises(InputError, match="two finished cells"):
        compare_drafts.paired(store, "drafts", ["head", "small"], "chain_sd")
