"""`python -m repro` as users meet it: a whole sweep with all that it leaves, its launchers, its help."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import wandb_logs
from perfetto_rule import dropped
from repro.experiments.cli import SCREEN_WIDTH
from tiny_project import Project

QUICK = "experiment=quickstart"


def wandb_runs(folder: Path) -> list[dict[str, Any]]:
    """What wandb's own reader says of every run below a folder."""
    return [wandb_logs.summary(run) for run in sorted(folder.glob("offline-run-*"))]


def events(timeline: Path) -> list[dict[str, Any]]:
    """The events of a timeline, if it is what Chrome and Perfetto read."""
    content = json.loads(gzip.decompress(timeline.read_bytes()))
    assert set(content) == {"traceEvents", "displayTimeUnit"}
    for event in content["traceEvents"]:
        assert event["ph"] in ("M", "X", "C")
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert {"ts", "pid", "tid", "name", "cat"} <= set(event)
    assert dropped(content["traceEvents"]) == []
    return list(content["traceEvents"])


def test_a_whole_sweep(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = ("std", "chain_sd")
    done = project.run(QUICK, f"method={','.join(methods)}", "wandb.mode=offline")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr

    made = project.quickstart
    files = {"Markdown": "table.md", "CSV": "table.csv", "LaTeX": "table.tex"}
    for kind, name in {**files, "picture": "figure.png", "picture as PDF": "figure.pdf"}.items():
        path = made / name
        assert f"{kind:<20} {path}\n" in done.stdout
        assert path.stat().st_size > 500
    assert (made / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert r"\toprule" in (made / "table.tex").read_text(encoding="utf-8")
    shown = (made / "table.md").read_text(encoding="utf-8")
    assert "made by `python -m repro experiment=quickstart " in shown
    assert "max_tokens=6 method=std,chain_sd prompts=2" in shown
    assert "results=" not in shown
    assert "n: 2 cells, 2 prompts a cell" in shown
    assert "| Flash-AR (not run) | — |" in shown
    row = next(line for line in done.stdout.splitlines() if line.strip().startswith("Chain-SD (8)"))
    assert 80 < len(row.rstrip()) <= SCREEN_WIDTH, "a table in a pipe was squeezed to 80 columns"
    assert "EdgeLLM" in done.stdout

    timelines = list((project.out / "outputs" / "timelines" / "quickstart").glob("*.json.gz"))
    assert sorted(path.name.partition("-")[0] for path in timelines) == sorted(methods)
    for path in timelines:
        assert str(path) in done.stdout
        names = {event["name"] for event in events(path)}
        assert {"load", "prefill", "decode", "target pass", "target head", "memory (GB)"} <= names
        assert sum(name.startswith("request ") for name in names) == 2, "a request is missing"

    runs = wandb_runs(project.out / "outputs" / "wandb")
    assert {run["state"] for run in runs} == {"finished"}
    assert sorted(run["name"].split()[0] for run in runs) == ["chain_sd", project.asked().folder, "std"]
    logged = (project.out / "outputs" / "wandb").glob("offline-run-*/files/media/table/answers_*.table.json")
    assert [len(json.loads(path.read_text(encoding="utf-8"))["data"]) for path in logged] == [2, 2]
    for line in (made / "members.jsonl").read_text(encoding="utf-8").splitlines():
        assert len(project.store.answers(json.loads(line)["key"])) == 2

    monkeypatch.setenv("REPRO_CACHE", str(project.root / "cache"))
    listed = [project.cell(QUICK, f"method={m}", "sweep=list") for m in reversed(methods)]
    assert [note.state for note in listed] == ["done"] * 2, "another process and order gave other keys"


def test_a_large_sweep_is_one_run_and_its_cells_get_theirs_afterwards(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repro.experiments.tracking.tracker.MOST_RUNS", 1)
    mine = project.apart(tmp_path, "wandb.mode=offline")
    sweep, folder = (QUICK, "method=std,chain_sd"), mine.out / "outputs" / "wandb"

    def named(*more: str) -> list[str]:
        done = mine.here(*sweep, *more)
        assert done.returncode == 0, done.stderr
        return sorted(run["name"].split()[0] for run in wandb_runs(folder))

    table = mine.asked().folder
    assert named() == [table]
    rows = next(folder.glob("offline-run-*/files/media/table/cells_*.table.json"))
    assert len(json.loads(rows.read_text(encoding="utf-8"))["data"]) == 2
    assert named("wandb.again=true") == ["chain_sd", table, "std"]
    shutil.rmtree(folder)
    assert named("sweep=force", "wandb.cells=true") == ["chain_sd", table, "std"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("hydra.launcher.workers=0", "hydra.launcher.workers is 0; it must be a number from 1, or null"),
        ("hydra.launcher.queue=slrm", "Did you mean slurm?"),
        ("hydra.launcher.address=tcp://127.0.0.1:9 hydra.launcher.workers=2", "leave out the rest"),
    ],
)
def test_what_dask_cannot_do_is_said(project: Project, settings: str, said: str) -> None:
    pytest.importorskip("distributed")
    done = project.here("-m", "method=std", "hydra/launcher=dask", *settings.split())
    assert done.returncode == 2
    assert said in done.stderr
