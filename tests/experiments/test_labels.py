"""Labels of an experiment's own: no part of a cell's identity, chosen by every sweep, kept by its table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from invented_tables import table_spec
from repro.core.errors import InputError
from repro.experiments.summaries.notes import Note
from repro.experiments.tables import Asked
from repro.reports.spec.spec import RowsSpec
from repro.scenarios.generation.scenario import GenerationScenario
from repro.scenarios.settings import own_labels
from tiny_project import Project, write_project

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
        own_labels({"labels": labels}, dict.fromkeys(USUAL, "chain_sd"))


def test_a_label_that_a_cell_cannot_have_fails_that_cell_alone(project: Project) -> None:
    labels = ("+labels.alpha=${method.alpha}", "+labels.task=summary")
    note = project.attempt("method=std", *labels)
    assert note.state == "failed"
    assert "method.alpha" in note.error
    assert (note.labels["alpha"], note.labels["task"]) == ("InterpolationKeyError", "summary")


def test_one_record_under_two_labels_is_two_rows_of_the_table(project: Project) -> None:
    """And the next sweep's labels replace them, whatever the record itself says."""
    first = project.cell("method=std", "+labels.task=translation")
    second = project.cell("method=std", "+labels.task=summary")
    assert (second.key, second.state) == (first.key, "cached")
    calls = {"key": "calls", "heading": "Calls", "value": "target_calls"}
    spec = table_spec("tasks", {"title": "T", "rows": {"by": ["task"]}, "columns": [calls]})

    def rows(*notes: Note) -> list[str]:
        asked = Asked(
            "tasks", tuple(f"method={note.labels['method']}" for note in notes), frozenset({"method"})
        )
        files = project.sweep().finish(asked, spec, list(notes))
        return [line.split(",")[1] for line in files["csv"].read_text(encoding="utf-8").splitlines()[1:]]

    assert rows(first, second, first) == ["summary", "translation"]
    assert [(each.key, each.labels["task"]) for each in project.store.members("tasks")] == [
        (first.key, "summary"),
        (first.key, "translation"),
    ]
    other = project.cell("method=flash_ar", "+labels.task=dialogue")
    assert rows(other) == ["dialogue", "summary", "translation"]
    renamed = project.cell("method=std", "+labels.task=Summary")
    assert rows(renamed) == ["Summary", "dialogue"]


def test_cells_that_no_label_tells_apart_are_an_error_and_not_a_choice(project: Project) -> None:
    column = {"key": "c", "heading": "C", "value": "ttft"}
    spec = table_spec("lengths", {"title": "T", "rows": {"by": ["method"]}, "columns": [column]})
    notes = [project.cell("method=chain_sd", f"method.length={length}") for length in (2, 3)]
    with pytest.raises(InputError, match=r"two cells have the same labels, chain_sd .* name the setting"):
        project.sweep().finish(Asked("lengths"), spec, notes)
    told = [replace(note, labels={**note.labels, "length": str(i)}) for i, note in enumerate(notes)]
    assert "csv" in project.sweep().finish(Asked("lengths"), replace(spec, rows=RowsSpec(("length",))), told)


@pytest.mark.parametrize(
    ("overrides", "columns"),
    [
        ((), {"speed": "", "pair": "qwen2_5_coder"}),
        (("weights=own",), {"speed": None}),
        (("weights=stand_in,own",), {"speed": "", "speed_own": "own"}),
    ],
)
def test_a_column_is_of_the_weights_that_it_or_the_command_names(
    overrides: tuple[str, ...], columns: dict[str, str | None]
) -> None:
    """A real pair's column of a grid stands beside the stand-ins'; what a command names replaces both."""
    speed = {"key": "speed", "heading": "Speed", "value": "decode_speed"}
    pair = {**speed, "key": "pair", "where": {"weights": "qwen2_5_coder"}}
    section = {"title": "Speed", "rows": {"by": ["method"]}, "columns": [speed, pair]}
    spec = Asked("lever/table5", overrides).spec(table_spec("lever/table5", section))
    assert {column.key: column.where.get("weights") for column in spec.columns} == columns
