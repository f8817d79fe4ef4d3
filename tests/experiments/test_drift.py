"""Committed cells are configured as today's `conf/` says, and a changed file of it is found."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest

from repro.core.paths import conf_dir, project_root
from repro.experiments.drift import drifted
from repro.records.results import Results, open_results


@cache
def committed() -> Results:
    return open_results(project_root() / "results")


def keys(table: str, **labels: str) -> set[str]:
    """The keys of a table's cells with these labels."""
    return {m.key for m in committed().members(table) if labels.items() <= m.labels.items()}


def test_every_committed_cell_is_configured_as_conf_says_today() -> None:
    assert drifted(committed()) == {}


@pytest.mark.parametrize(
    ("file", "before", "after", "table", "labels", "said"),
    [
        (
            "device/oneplus_12.yaml",
            "3.07",
            "3.57",
            "quickstart",
            {"method": "chain_sd"},
            "3.07 -> 3.57",
        ),
        (
            "dataset/humaneval.yaml",
            "Complete",
            "Finish",
            "ghidorah/table1",
            {"dataset": "humaneval"},
            "dataset.prompt.template",
        ),
    ],
)
def test_a_changed_file_is_found(
    file: str, before: str, after: str, table: str, labels: dict[str, str], said: str, tmp_path: Path
) -> None:
    """One number of a device, one word of a prompt: only cells that have it are named, with both values."""
    conf = Path(shutil.copytree(conf_dir(), tmp_path / "conf"))
    text = (conf / file).read_text(encoding="utf-8")
    assert before in text
    (conf / file).write_text(text.replace(before, after, 1), encoding="utf-8")
    affected, others = keys(table, **labels), keys("mllm_npu/fig13a")
    found = drifted(committed(), affected | others, conf)
    assert found.keys() == affected
    assert all(said in reason for reason in found.values()), found


@pytest.mark.parametrize("table", ["quickstart", "ghidorah/engines"])
def test_a_table_is_configured_as_conf_says_today(table: str) -> None:
    """Of a phone's device and an engine with forms, in seconds: the gate of faults of `conf/`."""
    assert drifted(committed(), keys(table)) == {}
