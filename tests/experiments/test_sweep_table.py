"""A sweep without a `table:` section ends with a table, which `repro table` makes again."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

import records
from repro import commands
from repro.core.errors import InputError
from repro.experiments.summaries.notes import Note
from repro.experiments.summaries.sweep_table import SweepCommand, sweep_table
from repro.records.results import Results
from repro.scenarios.base import Findings, Progress
from repro.scenarios.generation.scenario import GenerationScenario
from tiny_project import Project


@pytest.mark.parametrize(
    ("cells", "rows"),
    [
        (
            [({"method": m, "device": d}, {"method": m, "device": d.upper()}) for m in "ab" for d in "xy"],
            ("method", "device"),
        ),
        ([({"method.length": n}, {"method": "chain_sd"}) for n in "248"], ("length",)),
        (
            [({"pair": p}, {"method": m, "target": t}) for p, m, t in (("a", "x", "G"), ("b", "x", "Q"))],
            ("target",),
        ),
        (
            [({"pair": p}, {"method": m, "target": t}) for p, m, t in ("axG", "bxQ", "cyQ")],
            ("method", "target"),
        ),
        ([({"setup": s}, {"dataset": s, "workload": s, "method": "a"}) for s in "xy"], ("workload",)),
        ([({"preset": p}, {"method": "a"}) for p in "xy"], ("preset",)),
    ],
    ids=["choices", "setting", "one label", "two labels", "own label", "no label"],
)
def test_rows_are_named_by_the_labels_that_tell_values_apart(
    tmp_path: Path, cells: list[tuple[dict[str, str], dict[str, str]]], rows: tuple[str, ...]
) -> None:
    store, notes = Results(tmp_path), []
    for chosen, labels in cells:
        record = records.record(labels["method"], {"ttft": 0.2}, labels={**labels, **chosen})
        store.put(record)
        notes.append(Note(record.key, labels, "done", 1.0, chosen=chosen))
    overrides = {axis: ",".join(dict.fromkeys(chosen[axis] for chosen, _ in cells)) for axis in cells[0][0]}
    found = sweep_table(notes, store, overrides)
    assert found is not None
    assert found.table.rows.by == rows


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
