"""A sweep ends with the table of its own cells, or says what is wrong: folders, notes, metrics, tracking."""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from repro.core.overrides import override, word
from repro.experiments import sweep
from repro.experiments.progress import Watcher
from repro.experiments.summaries.notes import Note
from repro.scenarios.generation.scenario import GenerationScenario
from tiny_project import Project

pytestmark = pytest.mark.usefixtures("no_pictures")

SWEEP = "hydra.mode=MULTIRUN"
forked = multiprocessing.get_context("fork")


def rows(folder: Path) -> list[str]:
    """The rows of the one table below a folder."""
    (path,) = folder.rglob("table.csv")
    lines = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    return list(dict.fromkeys(line["row"] for line in lines))


def test_a_cell_that_is_listed_twice_runs_once(project: Project) -> None:
    done = project.here(SWEEP, "method=std,draft,std", "sampling.temperature=0,0.0")
    assert done.returncode == 0, done.stderr
    assert "2 cells" in done.stdout
    lines = [line.partition(" done in ")[0] for line in done.stderr.splitlines()]
    assert lines[:2] == ["1 of 2 cells, std", "2 of 2 cells, draft"]
    assert len(rows(project.out / "results")) == 2
    again = project.here(SWEEP, "method=chain_sd,'chain_sd'", "seed=1,1.0", "sweep=list")
    assert "1 cells" in again.stdout


def test_a_folder_that_is_used_again_has_no_cells_of_the_sweep_before(project: Project) -> None:
    folder = f"hydra.sweep.dir={project.out}/same"
    assert project.here(SWEEP, "method=std,draft,chain_sd", folder).returncode == 0
    other = override("results", project.out / "other")
    done = project.here(SWEEP, "method=std", "max_tokens=3", folder, other)
    assert done.returncode == 0, done.stderr
    assert "1 cells" in done.stdout
    assert len(rows(project.out / "other")) == 1


@pytest.mark.parametrize(("kept", "lost"), [(0, "std; draft"), (1, "draft")])
def test_a_sweep_without_all_notes_is_no_success(
    project: Project, monkeypatch: pytest.MonkeyPatch, kept: int, lost: str
) -> None:
    finish = Watcher.finish

    def some(watched: Watcher, number: int, note: Note) -> None:
        if number < kept:
            finish(watched, number, note)

    monkeypatch.setattr(Watcher, "finish", some)
    done = project.here(SWEEP, "method=std,draft")
    assert done.returncode == 1
    assert f"error: {2 - kept} of 2 cells of the plan were not run" in done.stderr
    assert f"not run: {lost}\n" in done.stderr


@pytest.mark.parametrize("mode", ["run", "force", "retry"])
def test_the_advice_at_the_end_runs_exactly_what_is_left(
    project: Project, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    computed: list[str] = []
    find = GenerationScenario.find

    def counted(self: GenerationScenario, progress: Any) -> Any:
        computed.append(self.name)
        if is_broken and self.name == "draft":
            raise RuntimeError("the tree fell over")
        return find(self, progress)

    monkeypatch.setattr(GenerationScenario, "find", counted)
    is_broken = True
    if mode == "retry":
        assert project.here(SWEEP, "method=draft").returncode == 1
    done = project.here(SWEEP, "method=std,draft,chain_sd", f"sweep={mode}")
    assert done.returncode == 1
    (advice,) = (line for line in done.stdout.splitlines() if line.startswith("go on with: repro "))
    computed.clear()
    is_broken = False
    again = project.here(*shlex.split(advice)[4:])
    assert again.returncode == 0, again.stderr
    assert computed == ["draft"]


def test_callbacks_of_others_are_called(project: Project) -> None:
    touch = "{_target_: tiny_callback.Touch, folder: " + str(project.out) + "}"
    for mode, words, events in (
        (SWEEP, "method=std,draft", {"on_multirun_start", "on_multirun_end"}),
        ("hydra.mode=RUN", "method=std", {"on_run_start", "on_job_start", "on_job_end", "on_run_end"}),
    ):
        done = project.here(mode, words, f"+hydra.callbacks.mine={touch}")
        assert done.returncode == 0, done.stderr
        assert {path.name for path in project.out.glob("on_*")} >= events


def test_the_home_folder_is_meant_by_its_sign(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    home = project.out / "home"
    environment = Project.environment
    monkeypatch.setattr(Project, "environment", lambda self: environment(self) | {"HOME": str(home)})
    for mode in ("hydra.mode=RUN", SWEEP):
        done = project.here(mode, "method=std", "results=~/mine/results", "outputs=~/mine/outputs")
        assert done.returncode == 0, done.stderr
    assert len(rows(home / "mine" / "results")) == 1
    assert {path.name for path in (home / "mine" / "outputs").iterdir()} == {"sweeps", "timelines"}
    assert not list(project.root.glob("~*"))


def test_a_metric_that_is_asked_for_by_name_is_shown(project: Project) -> None:
    done = project.here(SWEEP, "method=std,draft", "metrics=[exact_match,rouge_l_tokens]")
    assert done.returncode == 0, done.stderr
    (path,) = (project.out / "results").rglob("table.csv")
    lines = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    assert {"exact_match", "rouge_l_tokens"} <= {line["column"] for line in lines}


def test_no_folder_of_the_machine_is_in_what_a_sweep_commits(project: Project) -> None:
    for name in ("a", "b"):
        (project.out / name).mkdir()
        (project.out / name / "target").symlink_to(project.root / "target")
    first, second = (str(project.out / name / "target") for name in ("a", "b"))
    folders = f"{override('target.checkpoint.folder', first)},{word(second)}"
    done = project.here(SWEEP, "method=std,draft", folders)
    assert done.returncode == 0, done.stderr
    texts = {
        path: path.read_text(encoding="utf-8", errors="replace")
        for path in (project.out / "results").rglob("*.*")
        if path.suffix in (".md", ".csv", ".tex", ".json", ".jsonl")
    }
    assert len(texts) >= 6
    assert [path.name for path, text in texts.items() if str(project.out) in text] == []
    (written,) = [text for path, text in texts.items() if path.name == "sweep.json"]
    assert json.loads(written)["overrides"]["method"] == "std,draft"


def join_late(project: Project, method: str, together: Any) -> None:
    """End a sweep of one method, slowly between its reading and its writing."""
    torch.set_num_threads(1)
    made = sweep.made_table

    def slowly(*arguments: Any, **more: Any) -> Any:
        time.sleep(1.0)
        return made(*arguments, **more)

    sweep.made_table = slowly
    note = project.cell("experiment=quickstart", f"method={method}")
    together.wait()
    project.table([note], f"method={method}")


def test_two_sweeps_that_end_at_once_both_are_in_the_table(project: Project) -> None:
    methods = ("std", "draft", "chain_sd")
    for method in methods:
        project.cell("experiment=quickstart", f"method={method}")
    together = forked.Barrier(len(methods))
    ends = [forked.Process(target=join_late, args=(project, method, together)) for method in methods]
    for process in ends:
        process.start()
    for process in ends:
        process.join()
    assert [process.exitcode for process in ends] == [0] * len(methods)
    folder = project.asked().folder
    assert {m.labels["method"] for m in project.store.members(folder)} == set(methods)
    lines = csv.DictReader(io.StringIO((project.quickstart / "table.csv").read_text(encoding="utf-8")))
    assert {line["id"] for line in lines if line["ours"]} == set(methods)


def test_the_wandb_runs_of_what_is_done_are_written_again(project: Project) -> None:
    assert project.here(SWEEP, "method=std,draft").returncode == 0
    runs = project.out / "outputs" / "wandb"
    assert not runs.exists()
    assert project.here("method=std", "wandb.mode=offline").returncode == 0, "a cached cell writes none"
    assert not list(runs.glob("offline-run-*"))
    again = ("wandb.mode=offline", "wandb.again=true")
    done = project.here(SWEEP, "method=std,draft", *again)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cached") == 2
    names = sorted(path.name.split("-")[3] for path in runs.glob("offline-run-*"))
    assert names == ["cells", "draft", "std"]
    (std,) = runs.glob("offline-run-*[0-9]-std-*")
    assert list((std / "files" / "media" / "table").glob("rounds_*.table.json"))
    wrong = project.here("method=std", "wandb.again=true")
    assert "error: wandb.again writes runs, and the wandb mode is disabled" in wrong.stderr


@pytest.mark.parametrize("mode", ["hydra.mode=RUN", SWEEP])
def test_a_project_s_name_that_wandb_refuses_is_found_before_the_work(project: Project, mode: str) -> None:
    done = project.here(mode, "method=std", "wandb.mode=offline", "wandb.project='team/edge'")
    assert done.returncode == 2
    assert "error: wandb refuses its settings: Invalid project name 'team/edge'" in done.stderr
    assert not (project.out / "results" / "records").exists()


def test_of_a_long_sweep_only_what_is_not_done_is_printed_and_values_are_counted(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repro.experiments.sweep.MOST_ROWS", 5)
    done = project.here(SWEEP, "method=std", "seed=range(0,8)", "prompts=1", "max_tokens=1")
    assert done.returncode == 0, done.stderr
    assert "8 cells, of which 0 are not done" in " ".join(done.stdout.split())
    (folder,) = (project.out / "results" / "sweeps").iterdir()
    assert folder.name.startswith("seed-8_values-")
