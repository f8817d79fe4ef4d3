"""Committed cells are configured as today's `conf/` says, and a changed file of it is found."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from changed import is_changed, new_keys
from committed_results import smallest_tables
from records import record as invented
from repro.core.errors import InputError
from repro.core.paths import conf_dir, project_root
from repro.experiments.composing import publish
from repro.experiments.drift import find_drift
from repro.experiments.plan import planning
from repro.experiments.sweep import Sweep
from repro.experiments.tables import overrides_of
from repro.records.identity import cell_key
from repro.records.members import Member
from repro.records.record import Record
from repro.records.results import Results, open_results
from repro.scenarios.registry import made
from repro.scenarios.serving.scenario import ServingScenario


@cache
def committed() -> Results:
    return open_results(project_root() / "results")


def keys(table: str, **labels: str) -> set[str]:
    """The keys of a table's cells with these labels."""
    return {m.key for m in committed().members(table) if labels.items() <= m.labels.items()}


def commands(table: str) -> str:
    """The overrides of a table's cells, as one text."""
    return " ".join({" ".join(member.overrides) for member in committed().members(table)})


@pytest.mark.slow
def test_every_committed_cell_is_configured_as_conf_says_today() -> None:
    assert find_drift(committed()) == {}


def test_a_sample_and_what_changed_are_configured_as_conf_says_today() -> None:
    """The smallest table of each paper, and what differs from the commit before; the others take minutes."""
    changed = [table for table in committed().tables() if is_changed(table, commands(table))]
    chosen = new_keys().union(*map(keys, smallest_tables() + changed))
    assert find_drift(committed(), chosen) == {}


@pytest.mark.parametrize(
    "override",
    [
        "hydra.sweeper._target_=shutil.copyfile",
        "+hydra.sweeper.more=x",
        "hydra.searchpath=[pkg://antigravity]",
        "hydra/sweeper=basic",
        "labels.key=${oc.env:HOME}",
    ],
)
def test_a_command_in_results_of_others_sets_nothing_of_hydra(
    override: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To find drift, the commands that made cells are composed, and their sweeper is made."""
    cell = invented("std", {"speed": 1.0})
    results = Results(tmp_path)
    results.put(cell)
    results.set_members("paper/fig1", [Member(cell.key, cell.labels, ("method=std", override))])
    monkeypatch.setattr("repro.experiments.plan.instantiate", lambda *_: pytest.fail("it ran"))
    said = find_drift(results)[cell.key]
    assert "the command of a cell in these results s" in said
    with pytest.raises(InputError, match="the command of a cell in these results s"):
        overrides_of("paper/fig1@x", results.members("paper/fig1"))


@pytest.mark.parametrize(
    ("file", "before", "after", "table", "labels", "said"),
    [
        ("device/oneplus_12.yaml", "3.07", "3.57", "quickstart", {"method": "chain_sd"}, "3.07 -> 3.57"),
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
    found = find_drift(committed(), affected | others, conf)
    assert found.keys() == affected
    assert all(said in reason for reason in found.values()), found


@pytest.mark.parametrize("table", ["quickstart", "ghidorah/engines"])
def test_a_table_is_configured_as_conf_says_today(table: str) -> None:
    """Of a phone's device and an engine with forms, in seconds: the gate of faults of `conf/`."""
    assert find_drift(committed(), keys(table)) == {}


def settings_today(record: Record, **changes: object) -> Mapping[str, Any]:
    """What enters the key of a record's settings today."""
    return made({**record.provenance.config, **changes, "labels": {}, "data_dir": None}).asked


def key_today(record: Record, **changes: object) -> str:
    """The key of a record's settings today, with the inputs and versions that it was made with."""
    made_with = record.provenance
    return cell_key(settings_today(record, **changes), made_with.inputs, made_with.versions)


def floats(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        yield from floats([*value.values()])
    elif isinstance(value, list | tuple):
        yield from chain.from_iterable(map(floats, value))
    elif isinstance(value, float):
        yield value


def published_numbers() -> Iterator[float]:
    for path in (conf_dir() / "reference").glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            for text in chain.from_iterable(csv.reader(file)):
                with suppress(ValueError):
                    yield float(text)


def test_every_committed_key_is_that_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that came later makes no committed cell stale; another number of prompts does.

    Keys hold what was written, never what was computed, whose last digits another Python may give otherwise:
    every float is a file's or an override's (an agreement that is asked for as a share is one in percent).
    """
    publish()
    published = set(published_numbers())
    recorded: dict[bool, str] = {}
    for table in committed().tables():
        for record in committed().records(committed().members(table)):
            calibrated = (
                "corpus" in record.provenance.inputs
            )  # elsewhere asked of the rows, which are not here
            monkeypatch.setattr(ServingScenario, "reads_corpus", calibrated)
            assert key_today(record) == record.key, table
            written = published.union(floats(record.provenance.config))
            computed = set(floats(settings_today(record))) - written
            assert all(percent / 100 in written for percent in computed), (table, computed)
            recorded[calibrated] = record.key
    assert key_today(record, prompts=record.provenance.config["prompts"] + 1) != record.key
    assert recorded.keys() == {False, True}


def listed(conf: Path, *overrides: str) -> dict[str, str]:
    """What `sweep=list` says of the quickstart's cells, by method, on a machine without datasets."""
    publish()
    of_list = {"results": str(project_root() / "results"), "sweep": "list", "data_dir": None}
    with planning(conf) as plan:
        cells = [plan.cell((*cell, *overrides)) | of_list for cell in plan.jobs(["experiment=quickstart"])]
    sweep = Sweep(cells[0], Console(file=io.StringIO()))
    return {cell["method"]["name"]: sweep.cell(cell).state for cell in cells}


def test_a_list_is_of_settings_and_reads_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed override or number of a file is to do, in the cells that have it."""
    monkeypatch.setattr("repro.data.load_rows", lambda *_: pytest.fail("rows were read"))
    monkeypatch.setattr("repro.models.runtime.model.Model.digest", property(lambda _: pytest.fail("weights")))
    assert set(listed(conf_dir()).values()) == {"done"}
    assert set(listed(conf_dir(), "max_tokens=65").values()) == {"todo"}
    conf = Path(shutil.copytree(conf_dir(), tmp_path / "conf"))
    draft = conf / "model" / "shape" / "qwen3_0_6b.yaml"
    draft.write_text(draft.read_text(encoding="utf-8").replace("layers: 28", "layers: 29"), encoding="utf-8")
    states = listed(conf)
    assert {method for method, state in states.items() if state == "done"} == {"std", "flash_ar"}
    assert {*states.values()} == {"done", "todo"}
