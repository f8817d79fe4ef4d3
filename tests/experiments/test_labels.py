"""Labels of an experiment's own: no part of a cell's identity, chosen by every sweep, kept by its table."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from records import record
from repro.core.errors import InputError
from repro.experiments.cli import attempt
from repro.experiments.sweep import Note
from repro.records.record import Store
from repro.reports.tables import members
from repro.scenarios.generation.scenario import GenerationScenario
from repro.scenarios.settings import own_labels
from tiny_project import Project, composed, write_project

USUAL = {"method", "device", "dataset", "target", "draft"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def project(shared: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("REPRO_CACHE", str(shared.root / "cache"))
    return shared.apart(tmp_path)


def test_labels_interpolate_settings_and_are_no_part_of_the_key(project: Project) -> None:
    more = (
        "+labels.drafted=${method.length}",
        "+labels.budget=${device.dram.budget.value}",
        "+labels.n=null",
    )
    bare, labelled = (GenerationScenario(project.config("method=chain_sd", *o)) for o in ((), more))
    assert dict(labelled.labels.items() - bare.labels.items()) == {"drafted": "8", "budget": "12"}
    assert bare.labels.keys() >= USUAL
    assert labelled.key == bare.key


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (["a"], r"labels is \['a'\]; it must be a mapping"),
        ({"device": "phone"}, "labels.device is a label that every cell has already"),
        ({"a": {"b": 1}}, r"labels\.a is \{'b': 1\}; it must be a single value"),
    ],
)
def test_labels_that_are_none(labels: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        own_labels({"labels": labels}, taken=USUAL)


def test_a_label_that_a_cell_cannot_have_fails_that_cell_alone(project: Project) -> None:
    labels = ("+labels.alpha=${method.alpha}", "+labels.task=summary")
    note = attempt(composed(*project.overrides, "method=std", *labels))
    assert note.state == "failed"
    assert "method.alpha" in note.error
    assert (note.labels["alpha"], note.labels["task"]) == ("InterpolationKeyError", "summary")


def test_one_record_under_two_labels_is_two_rows_of_the_table(project: Project) -> None:
    """And the next sweep's labels replace them, whatever the record itself says."""
    first = project.cell("method=std", "+labels.task=translation")
    second = project.cell("method=std", "+labels.task=summary")
    assert (second.key, second.state) == (first.key, "cached")
    spec = {
        "title": "T",
        "rows": {"by": ["task"]},
        "columns": [{"key": "calls", "heading": "Calls", "value": "target_calls"}],
    }

    def rows(*notes: Note) -> list[str]:
        files = project.sweep().finish("tasks", spec, list(notes))
        return [line.split(",")[1] for line in files["csv"].read_text().splitlines()[1:]]

    assert rows(first, second, first) == ["summary", "translation"]
    listed = json.loads((project.out / "results" / "tables" / "tasks.cells.json").read_text())
    assert [(each["key"], each["labels"]["task"]) for each in listed] == [
        (first.key, "summary"),
        (first.key, "translation"),
    ]
    other = project.cell("method=flash_ar", "+labels.task=dialogue")
    assert rows(other) == ["dialogue", "summary", "translation"]
    renamed = project.cell("method=std", "+labels.task=Summary")
    assert rows(renamed) == ["Summary", "dialogue"]


def test_cells_that_no_label_tells_apart_are_an_error_and_not_a_choice(project: Project) -> None:
    spec = {
        "title": "T",
        "rows": {"by": ["method"]},
        "columns": [{"key": "c", "heading": "C", "value": "ttft"}],
    }
    notes = [project.cell("method=chain_sd", f"method.length={length}") for length in (2, 3)]
    with pytest.raises(InputError, match=r"two cells have the same labels, chain_sd .* name the setting"):
        project.sweep().finish("lengths", spec, notes)
    told = [replace(note, labels={**note.labels, "length": str(i)}) for i, note in enumerate(notes)]
    assert "csv" in project.sweep().finish("lengths", {**spec, "rows": {"by": ["length"]}}, told)


def test_a_list_of_members_that_is_corrupt_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "records")
    store.put(record("std", {}))
    for text in ("[", '["0123456789"]', '[{"key": "0123456789"}]'):
        (tmp_path / "t.cells.json").write_text(text)
        with pytest.raises(InputError, match=r"t\.cells\.json is corrupt .* run the experiment again"):
            members.read(tmp_path, "t", store)
