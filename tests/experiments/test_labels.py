"""Labels of an experiment's own: no part of a cell's identity, chosen by every sweep, kept by its table."""

from dataclasses import replace

import pytest

from invented_tables import table_spec
from repro.core.errors import InputError
from repro.experiments.summaries.notes import Note
from repro.experiments.tables import Asked
from repro.reports.spec.spec import RowsSpec
from repro.scenarios.generation.scenario import GenerationScenario
from tiny_project import Project

USUAL = {"method", "device", "dataset", "target", "draft"}


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
