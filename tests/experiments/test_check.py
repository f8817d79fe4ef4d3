"""`repro check`: what is equal, what differs and is found, what cannot be checked, which cells are chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from faults import dearer_launches, shorter_paths
from repro import commands
from repro.core.errors import InputError
from repro.experiments import check as checking
from repro.experiments.check import (
    CheckedCell,
    beginning,
    beside_conf,
    check,
    differences,
    report,
    select_cells,
)
from repro.records.members import Member
from repro.records.record import Record
from repro.records.results import open_results
from tiny_project import Project, write_project


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_project(tmp_path_factory.mktemp("check"))


@pytest.fixture
def project(made: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Committed: three cells of the quickstart's table."""
    monkeypatch.setenv("REPRO_CACHE", str(made.root / "cache"))
    monkeypatch.setenv("REPRO_MODELS", str(made.root))  # a record keeps the last part of a folder
    methods = ("std", "draft", "chain_sd")
    asked = [("experiment=quickstart", f"method={name}") for name in methods]
    records = [made.record(*one) for one in asked]
    commands = [made.asked(*one).overrides for one in asked]
    members = [Member(r.key, r.labels, command) for r, command in zip(records, commands, strict=True)]
    made.store.set_members("quickstart", members)
    return made


def committed(project: Project) -> Record:
    return project.record("experiment=quickstart", "method=chain_sd")


def verdict(project: Project, record: Record | None = None) -> CheckedCell:
    return check(record or committed(project), str(project.root / "data"))


def run(project: Project, *arguments: str) -> int:
    return commands.run(
        "check", [*arguments, "--results", str(project.out / "results"), "--data", str(project.root / "data")]
    )


def elsewhere(record: Record) -> Record:
    """The record as if another kind of processor had made it."""
    host = {**record.provenance.host, "processor": "another"}
    return replace(record, provenance=replace(record.provenance, host=host))


def test_what_was_committed_is_computed_again_and_equal(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(project) == 0
    said = capsys.readouterr().out
    assert "3 of 3 cells checked: 3 equal, 0 tie, 0 different, 0 conf differs, 0 not checkable here" in said


def test_first_answers_are_checked_round_by_round(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two answers the first is computed; a round of it that was committed otherwise is named."""
    assert run(project, "--prompts", "1") == 0
    assert "3 of 3 cells checked: 3 equal" in capsys.readouterr().out
    assert run(project, "--prompts", "0") == 2
    record, data = committed(project), str(project.root / "data")
    first = beginning(open_results(project.out / "results"), record, 1)
    assert first is not None
    changed = check(record, data, first._replace(rounds=[{**line, "accepted": 7} for line in first.rounds]))
    assert (changed.state, "round 0: accepted 7 -> " in changed.reason) == ("different", True)
    assert "rounds -> " in check(record, data, first._replace(rounds=first.rounds[1:])).reason


@pytest.mark.parametrize(
    ("change", "figure"), [(dearer_launches, "decode_joules"), (shorter_paths, "acceptance")]
)
def test_a_changed_constant_is_found(
    project: Project, monkeypatch: pytest.MonkeyPatch, change: Any, figure: str
) -> None:
    record = committed(project)
    change(monkeypatch)
    found = verdict(project, record)
    assert found.state == "different"
    assert figure in found.reason
    assert report(Console(), [found]) == 1


def test_a_cell_that_conf_configures_otherwise_today_has_a_state_of_its_own(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    record = committed(project)
    equal, other = CheckedCell(record, "equal"), CheckedCell(record, "different", "latency 1 -> 2")
    assert beside_conf(equal, {}) == equal
    assert beside_conf(equal, {record.key: "device.dram.watts 1 -> 2"}).state == "conf differs"
    both = beside_conf(other, {record.key: "device.dram.watts 1 -> 2"})
    assert (both.state, "latency" in both.reason, "watts" in both.reason) == ("different", True, True)
    assert report(Console(), [beside_conf(equal, {record.key: "device.dram.watts 1 -> 2"})]) == 1
    assert "conf differs: quickstart" in capsys.readouterr().out


def test_nothing_remembered_is_read(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed model is found although the memo of the run that committed knows what the old one said."""
    from repro.models.forward.network import Logits

    record = committed(project)
    monkeypatch.setattr(Logits, "choice", property(lambda row: 5))
    assert verdict(project, record).state == "different"


def test_versions_and_inputs_that_are_others_are_named(project: Project) -> None:
    record = committed(project)
    older = replace(record.provenance, versions={**record.provenance.versions, "cost model": 0})
    found = verdict(project, replace(record, provenance=older))
    assert (found.state, found.reason) == ("different", "versions: cost model 0 -> 1")
    other = replace(record.provenance, inputs={**record.provenance.inputs, "draft": "0" * 64})
    found = verdict(project, replace(record, provenance=other))
    assert found.reason.startswith("inputs: draft 000000000000 -> ")
    assert verdict(project, replace(record, key="0" * 64)).reason.endswith("has another key now")


def test_what_cannot_be_checked_here_says_why(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    record = committed(project)
    found = check(record, str(project.root / "nowhere"))
    assert found.state == "not checkable here"
    assert "openai_humaneval.jsonl" in found.reason or "nowhere" in found.reason
    wall = replace(record, provenance=replace(record.provenance, clock="wall"))
    assert "wall clock" in verdict(project, wall).reason
    assert report(Console(), [found, CheckedCell(record, "equal")]) == 0
    assert report(Console(), [found, found, CheckedCell(record, "equal")]) == 1
    assert "fewer than half of the cells could be checked" in capsys.readouterr().out


def test_an_interrupted_check_says_how_far_it_came(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    def found() -> Iterator[CheckedCell]:
        yield CheckedCell(committed(project), "equal")
        raise KeyboardInterrupt

    assert report(Console(), found()) == 1
    said = capsys.readouterr().out
    assert "interrupted; of the cells so far:" in said
    assert "1 of 1 cells checked: 1 equal" in said


def test_another_kind_of_host_may_differ_a_little_and_at_ties(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = elsewhere(committed(project))
    seconds = float(str(record.values["decode_seconds"]))
    near = replace(record, values={**record.values, "decode_seconds": seconds * 1.0005})
    assert verdict(project, near).state == "equal"
    far = replace(record, values={**record.values, "decode_seconds": seconds * 1.01})
    found = verdict(project, far)
    assert (found.state, "another kind of host" in found.reason) == ("different", True)
    monkeypatch.setattr(checking, "TIE_MARGIN", 1e9)
    assert verdict(project, far).state == "tie"


def test_figures_with_intervals_are_compared_within_them_elsewhere() -> None:
    from records import record

    def of(accuracy: float, flips: int) -> Record:
        made = record("awq", {"accuracy": accuracy, "flips": flips})
        return replace(made, uncertainty={"accuracy": 5.0})

    one = of(50.0, 3)
    assert list(differences(one, of(63.0, 9), same_host=False)) == []  # 1.96 * 5 * sqrt(2) = 13.9
    assert list(differences(one, of(64.0, 3), same_host=False)) == ["accuracy 50.0 -> 64.0"]
    assert list(differences(one, of(50.0, 4), same_host=True)) == ["flips 3 -> 4"]


def test_cells_are_chosen_by_table_by_list_and_by_hash(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    results = project.out / "results"
    assert run(project, "quickstrat") == 2
    assert "there is no table with cells 'quickstrat'. Did you mean quickstart?" in capsys.readouterr().err
    ((cell, prompts),) = select_cells(
        results, [{"table": "quickstart", "where": {"method": "draft"}}]
    ).values()
    assert (cell.labels["method"], prompts) == ("draft", None)
    with pytest.raises(InputError, match="finds no cell"):
        select_cells(results, [{"table": "quickstart", "where": {"method": "lever"}}])
    assert run(project, "--sample", "0") == 2
    assert run(project, "--sample", "1") == 0
    assert "1 of 1 cells checked: 1 equal" in capsys.readouterr().out
    assert commands.run("check", ["--results", "/nonexistent"]) == 2


def test_the_list_of_the_project_names_committed_cells() -> None:
    import yaml

    from repro.core.paths import conf_dir, project_root

    listed = yaml.safe_load((conf_dir() / "check.yaml").read_text(encoding="utf-8"))
    assert len(select_cells(project_root() / "results", listed)) > 50
