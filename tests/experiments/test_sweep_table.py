"""A sweep without a `table:` section ends with a table, which `repro table` makes again."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import records
from invented_tables import table_spec
from repro import commands
from repro.core.errors import InputError
from repro.experiments.recorded_tables import NumberLines
from repro.experiments.summaries.notes import Note
from repro.experiments.summaries.sweep_table import SweepCommand, SweepTable, sweep_table
from repro.records.results import Results
from repro.scenarios.base import Findings, Progress
from repro.scenarios.generation.scenario import GenerationScenario
from tiny_project import Project, write_project

VALUES = {"decode_tokens_per_s": 20.0, "time_per_token": 0.05, "ttft": 0.2, "prompts": 2}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_project(tmp_path_factory.mktemp("project"))


def made(tmp_path: Path, cells: list[tuple[dict[str, str], dict[str, str]]], **values: float) -> SweepTable:
    """The table of cells with these overrides and labels."""
    store, notes, overrides = Results(tmp_path), [], {}
    for chosen, labels in cells:
        record = records.record(labels["method"], {**VALUES, **values}, labels={**labels, **chosen})
        store.put(record)
        notes.append(Note(record.key, labels, "done", 1.0, chosen=chosen))
        for key, value in chosen.items():
            overrides[key] = ",".join(dict.fromkeys([*overrides.get(key, value).split(","), value]))
    found = sweep_table(notes, store, overrides)
    assert found is not None
    return found


def rows(table: SweepTable) -> list[str]:
    return list(table.table.rows.by)


def test_rows_are_named_by_the_labels_of_what_varies(tmp_path: Path) -> None:
    cells = [
        ({"method": method, "device": device}, {"method": method, "device": name, "agreement": agreement})
        for method, agreement in (("std", "native"), ("edgellm", "matched"))
        for device, name in (("oneplus_12", "OnePlus 12"), ("xiaomi_14", "Xiaomi 14"))
    ]
    table = made(tmp_path, cells)
    assert rows(table) == ["method", "device"]
    assert table.name.startswith("sweeps/std-edgellm-oneplus_12-xiaomi_14-")


def test_a_setting_that_varies_becomes_a_label(tmp_path: Path) -> None:
    cells = [({"method.length": n}, {"method": "chain_sd", "device": "OnePlus 12"}) for n in ("2", "4", "8")]
    table = made(tmp_path, cells)
    assert rows(table) == ["length"]
    assert table.command.rows == {"length": "method.length"}
    assert [note.labels["length"] for note in table.notes] == ["2", "4", "8"]
    assert table.name.startswith("sweeps/length-2-4-8-")
    assert table.table.title == "length 2, 4 and 8 (Chain-SD, OnePlus 12)"


def test_a_choice_that_several_labels_tell_apart_uses_them_all(tmp_path: Path) -> None:
    cells = [
        ({"pair": "a"}, {"method": "mlc_gpu", "target": "Gemma"}),
        ({"pair": "b"}, {"method": "mlc_gpu", "target": "Qwen"}),
        ({"pair": "c"}, {"method": "mnn_cpu", "target": "Qwen"}),
    ]
    assert rows(made(tmp_path, cells)) == ["method", "target"]


def test_an_experiment_s_own_label_comes_before_what_it_stands_for(tmp_path: Path) -> None:
    cells = [
        ({"setup": name}, {"method": "edgellm", "dataset": name[-3:], "workload": name})
        for name in ("t5_cnn", "bart_wmt")
    ]
    assert rows(made(tmp_path, cells)) == ["workload"]


def test_a_choice_without_a_label_gets_one(tmp_path: Path) -> None:
    cells = [({"method_preset": name}, {"method": "edgellm"}) for name in ("bnv", "bnv_sf")]
    table = made(tmp_path, cells)
    assert rows(table) == ["method_preset"]


def test_columns_are_what_the_cells_have_with_enough_digits(tmp_path: Path) -> None:
    table = made(tmp_path, [({"method": "std"}, {"method": "std"})], time_per_token=0.00123)
    columns = {column.key: column for column in table.table.columns}
    assert [*columns] == ["decode_tokens_per_s", "time_per_token", "ttft", "prompts"]
    assert columns["ttft"].digits == 3
    assert columns["time_per_token"].digits == 5
    assert columns["decode_tokens_per_s"].unit == "tokens/s"
    assert columns["decode_tokens_per_s"].better == "higher"


def test_folders_are_no_part_of_a_sweep_s_name_or_command(tmp_path: Path) -> None:
    store = Results(tmp_path)
    record = records.record("std", VALUES)
    store.put(record)
    notes = [Note(record.key, {"method": "std"}, "done", chosen={"method": "std"})]
    plain = sweep_table(notes, store, {"method": "std"})
    other = sweep_table(notes, store, {"method": "std", "results": "/x", "wandb.mode": "online"})
    assert plain is not None
    assert other == plain
    assert str(plain.command) == "python -m repro -m method=std"


DEVICES = {f"phone_{i}": f"Phone {i}" for i in range(6)}


def over_lengths(tmp_path: Path, lengths: Sequence[str]) -> SweepTable:
    """The table of chain_sd at each length on six devices."""
    cells = [
        ({"method.length": length, "device": device}, {"method": "chain_sd", "device": name})
        for length in lengths
        for device, name in DEVICES.items()
    ]
    return made(tmp_path, cells)


def test_a_number_over_devices_is_drawn_as_lines(tmp_path: Path) -> None:
    """42 rows, and 84 of which bars would show nothing."""
    for count in (7, 14):
        figure = over_lengths(tmp_path / str(count), [str(1 + i) for i in range(count)]).table.figure
        assert figure
        assert (figure.kind, figure.x, figure.columns) == ("lines", "length", ("decode_tokens_per_s",))
        assert figure.heading == "Decode (tokens/s)"


@pytest.mark.parametrize("lengths", [("2", "4"), ("2", "4", "auto"), ("2", "4", "nan"), ("1.2.3", "1", "2")])
def test_two_numbers_and_words_are_drawn_as_bars(tmp_path: Path, lengths: tuple[str, ...]) -> None:
    figure = over_lengths(tmp_path, lengths).table.figure
    assert figure
    assert figure.kind == "bars"


def test_the_whole_answer_has_columns(tmp_path: Path) -> None:
    """Two prompts: a mean latency of 3 s; 4 J of prompts and 6 J of decoding are 5 J an answer."""
    joules = {"latency": 3.0, "prefill_joules": 4.0, "decode_joules": 6.0}
    table = made(tmp_path, [({"method": "std"}, {"method": "std"})], **joules)
    names = [column.key for column in table.table.columns]
    assert {"answer_seconds", "answer_joules"} <= {*names}
    record = Results(tmp_path).get(table.notes[0].key)
    assert record is not None
    assert (record.figure("answer_seconds"), record.figure("answer_joules")) == (3.0, 5.0)


def test_without_a_finished_cell_there_is_no_table(tmp_path: Path) -> None:
    failed = records.record("std", {}, status="failed", error="Traceback")
    Results(tmp_path).put(failed)
    note = Note(failed.key, {"method": "std"}, "failed", chosen={"method": "std"})
    assert sweep_table([note], Results(tmp_path), {"method": "std"}) is None


def test_many_values_are_numbered_in_a_folder_s_name(tmp_path: Path) -> None:
    cells = [({"prompt_tokens": str(n)}, {"method": "std"}) for n in range(64, 144)]
    table = made(tmp_path, cells)
    assert re.fullmatch(r"sweeps/prompt_tokens-80_values-\w{8}", table.name)


@pytest.mark.parametrize("content", ["[1]", "{}", '{"overrides": 1, "rows": {}}', "{"])
def test_a_damaged_sweep_file_is_said(tmp_path: Path, content: str) -> None:
    (tmp_path / "sweeps" / "mine").mkdir(parents=True)
    with pytest.raises(InputError, match="the sweep's own command makes its table again"):
        SweepCommand.read("sweeps/mine", tmp_path)
    (tmp_path / "sweeps" / "mine" / "sweep.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match="is no sweep's command"):
        SweepCommand.read("sweeps/mine", tmp_path)


def figures(path: Path) -> list[dict[str, str]]:
    """The lines of a table's CSV."""
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def test_a_sweep_ends_with_a_table_that_is_made_again(project: Project, tmp_path: Path) -> None:
    mine = project.apart(tmp_path)
    done = mine.here("hydra.mode=MULTIRUN", "method=chain_sd", "method.length=2,4")
    assert done.returncode == 0, done.stderr
    assert any(line.split()[:2] == ["length", "(tokens/s)"] for line in done.stdout.splitlines())
    (folder,) = (tmp_path / "results").glob("sweeps/length-2-4-*")
    for file in ("table.md", "table.csv", "table.tex", "figure.png", "figure.pdf"):
        assert str(folder / file) in done.stdout
    text = (folder / "table.md").read_text(encoding="utf-8")
    assert "made by `python -m repro -m " in text
    assert {r["row"] for r in figures(folder / "table.csv")} == {"2", "4"}
    again = ["--results", str(tmp_path / "results"), "--out", str(tmp_path / "again")]
    assert commands.run("table", [f"sweeps/{folder.name}", *again]) == 0
    for file in ("table.md", "table.csv", "table.tex", "figure.png"):
        assert (tmp_path / "again" / "sweeps" / folder.name / file).read_bytes() == (
            folder / file
        ).read_bytes()


def test_rows_hold_the_best_of_each_column_and_failed_cells(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = GenerationScenario.find

    def failing(cell: GenerationScenario, progress: Progress) -> Findings:
        if cell.name == "chain_sd":
            raise RuntimeError("the draft fell over")
        return find(cell, progress)

    monkeypatch.setattr(GenerationScenario, "find", failing)
    done = project.apart(tmp_path).here("hydra.mode=MULTIRUN", "method=std,flash_ar,chain_sd")
    assert done.returncode == 1
    (path,) = (tmp_path / "results").glob("sweeps/std-flash_ar-chain_sd-*/table.md")
    text = path.read_text(encoding="utf-8")
    assert "failed" in text
    assert "★ best of its column" in text


def test_a_sweep_says_where_targets_lie_and_which_watts_are_assumed(project: Project, tmp_path: Path) -> None:
    """std holds its target by default, chain_sd reads it; all watts of the project's phone are assumed."""
    mine = project.apart(tmp_path)
    done = mine.here("hydra.mode=MULTIRUN", "method=std,chain_sd")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "The target is resident in memory with Std; streamed from flash with Chain-SD." in text
    assert "Joules rest on watts that are assumed, of " in text
    (path,) = (tmp_path / "results").glob("sweeps/std-chain_sd-*/table.csv")
    columns = {line["column"]: line for line in figures(path) if line["id"] == "chain_sd"}
    assert {"answer_seconds", "answer_joules"} <= {*columns}
    assert columns["answer_seconds"]["better"] == "lower"
    assert columns["decode_tokens_per_s"]["better"] == "higher"
    assert columns["answer_seconds"]["method"] == "chain_sd"
    assert "Energy of the whole answer, watts assumed" in path.with_suffix(".md").read_text(encoding="utf-8")
    same = project.apart(tmp_path / "same").here("hydra.mode=MULTIRUN", "method=std,chain_sd", "resident=1.0")
    assert same.returncode == 0, same.stderr
    assert "The target is resident" not in " ".join(same.stdout.split())
    one = mine.here("method=chain_sd")
    words = [" ".join(line.split()) for line in one.stdout.splitlines()]
    assert any(line.startswith("Whole answer ") for line in words)
    assert any(line.startswith("Energy of the whole answer ") and ", watts assumed" in line for line in words)
    assert not any(line.startswith("Latency 0") for line in words), "it is the whole answer's number"


def test_a_table_is_drawn_over_a_number_by_devices(project: Project, tmp_path: Path) -> None:
    mine = project.apart(tmp_path)
    done = mine.here("hydra.mode=MULTIRUN", "method.length=1,2,3", "method=chain_sd")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "results").glob("sweeps/length-1-2-3-*")
    asked = [f"sweeps/{folder.name}", "--results", str(tmp_path / "results")]
    assert commands.run("table", [*asked, "--x", "length"]) == 0
    assert (folder / "over_length.png").read_bytes().startswith(b"\x89PNG")
    assert commands.run("table", [*asked, "--x", "lengths"]) == 2
    assert commands.run("table", [*asked, "--x", "length", "--by", "device"]) == 2


def test_lines_and_panels_are_the_labels_that_are_named() -> None:
    columns = [
        {"key": "speed", "unit": "x", "heading": "Speed", "value": "speed"},
        {"key": "joules", "unit": "J", "heading": "J", "value": "joules"},
    ]
    rows = {"by": ["method", "device", "length"]}
    spec = table_spec("t", {"title": "T", "rows": rows, "columns": columns})
    figure = NumberLines("length", "device").drawn(spec).figure
    assert figure
    assert (figure.x, figure.panel, figure.columns) == ("length", "method", ("speed",))
    lines = NumberLines("length").drawn(spec).figure
    assert lines
    assert lines.panel == ""
    four = replace(spec, rows=replace(spec.rows, by=("method", "device", "dataset", "length")))
    with pytest.raises(InputError, match="--by device leaves method, dataset"):
        NumberLines("length", "device").drawn(four)
