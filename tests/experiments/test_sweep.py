"""Sweeps: what is done stays done, what fails is said and alone run again, and a kill changes nothing."""

import gzip
import io
import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from repro.experiments.summaries.notes import Note
from repro.experiments.sweep import Sweep
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.records import build_cache
from repro.reports.figures.figure import draw
from repro.scenarios.base import COST_VERSIONS
from tiny_project import METHODS, Project

QUICK = "experiment=quickstart"
pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """EdgeLLM fails in the midst of its work until the returned function mends it."""

    async def serve(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the tree fell over")

    with monkeypatch.context() as patch:
        patch.setattr(EdgeLLM, "serve", serve)
        yield patch.undo


def sweep(project: Project, *overrides: str, methods: tuple[str, ...] = METHODS) -> list[Note]:
    return [project.cell(QUICK, f"method={method}", *overrides) for method in methods]


def states(notes: list[Note]) -> list[str]:
    return [note.state for note in notes]


def test_what_is_done_is_not_run_again(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro.reports.files._picture", draw)
    notes = sweep(project)
    assert states(notes) == ["done"] * 5
    first, _ = project.table(notes)
    before = {path: path.read_bytes() for path in project.out.rglob("*") if path.is_file()}

    def compute(*_: Any) -> None:
        raise AssertionError("a finished cell was computed again")

    monkeypatch.setattr("repro.scenarios.base.Scenario.run", compute)
    again = sweep(project)
    assert states(again) == ["cached"] * 5
    assert [note.key for note in again] == [note.key for note in notes]
    second, _ = project.table(again)
    assert second == first
    pictures = {path for path in before if path.suffix == ".png"}
    after = {path: path.read_bytes() for path in project.out.rglob("*") if path.is_file()}
    assert {p: c for p, c in after.items() if p not in pictures} == {
        p: c for p, c in before.items() if p not in pictures
    }


def test_a_failure_leaves_its_traceback_and_the_sweep_goes_on(
    project: Project, broken: Callable[[], None]
) -> None:
    notes = sweep(project, methods=("std", "edgellm", "flash_ar"))
    assert states(notes) == ["done", "failed", "done"]
    assert notes[1].error == "RuntimeError: the tree fell over"
    record = project.store.get(notes[1].key)
    assert record is not None
    assert record.error is not None
    assert record.error.startswith("Traceback")
    assert "in serve" in record.error
    assert record.provenance.config["method"]["name"] == "edgellm"
    files, screen = project.table(notes)
    assert "edgellm failed: RuntimeError: the tree fell over" in screen
    assert "failed [1]" in files["md"].read_text(encoding="utf-8")

    broken()
    assert states(sweep(project, "sweep=retry")) == ["cached", "cached", "skipped", "skipped", "done"]
    mended = project.store.get(notes[1].key)
    assert mended is not None
    assert mended.done
    project.table(sweep(project, methods=("std", "edgellm", "flash_ar")))
    texts = [path.read_text(encoding="utf-8") for path in project.store.folder.glob("*.jsonl")]
    assert any("the tree fell over" in text for text in texts), "the failure is history, not lost"


def test_force_runs_again_and_keeps_the_older_record(project: Project) -> None:
    (note,) = sweep(project, methods=("std",))
    (again,) = sweep(project, "sweep=force", methods=("std",))
    assert (again.key, again.state) == (note.key, "done")
    texts = [path.read_text(encoding="utf-8") for path in project.store.folder.glob("*.jsonl")]
    assert sum(text.count(f'{{"cell": "{note.key}"') for text in texts) == 2


def test_a_failed_cell_is_run_again_by_the_next_sweep(project: Project, broken: Callable[[], None]) -> None:
    assert states(sweep(project, methods=("edgellm",))) == ["failed"]
    assert states(sweep(project, "sweep=list", methods=("edgellm",))) == ["failed"]
    broken()
    assert states(sweep(project, methods=("edgellm",))) == ["done"]


def test_a_method_run_alone_joins_the_table(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.table(sweep(project, methods=("std", "flash_ar")), "method=std,flash_ar")
    files, _ = project.table(sweep(project, methods=("chain_sd",)), "method=chain_sd")
    shown = files["md"].read_text(encoding="utf-8")
    for row in ("| Std (resident) | 1.00", "| Flash-AR | 1.00", "| Chain-SD (8) | "):
        assert row in shown
    assert "| Chain-SD (8) | —" not in shown
    assert "method=std,flash_ar prompts=2" in shown
    assert "method=chain_sd prompts=2" in shown, "both commands made it"
    assert "| EdgeLLM (not run) | —" in shown
    monkeypatch.setitem(COST_VERSIONS, "cost model", 2)
    files, _ = project.table(sweep(project, methods=("std",)), "method=std")
    shown = files["md"].read_text(encoding="utf-8")
    assert "o made by an older version of a component" in shown
    older = next(line for line in shown.splitlines() if line.startswith("| Chain-SD (8) | "))
    assert older.split(" | ")[1].endswith(" o"), "cells of older versions stay and are marked"
    assert next(line for line in shown.splitlines() if line.startswith("| Std")).split(" | ")[1] == "1.00"


def test_changed_settings_have_a_table_of_their_own(project: Project) -> None:
    """Other prompts or another setting of a method never stand under the rows of the first table."""
    first, _ = project.table(sweep(project, methods=("flash_ar", "chain_sd")), "method=flash_ar,chain_sd")
    before = first["md"].read_bytes()
    asked = ("method.length=4", "skip=1")
    notes = sweep(project, *asked, methods=("chain_sd",))
    files, _ = project.table(notes, "method=chain_sd", *asked)
    assert files["md"].parent != first["md"].parent
    assert first["md"].read_bytes() == before
    shown = files["md"].read_text(encoding="utf-8")
    assert "method.length=4, prompts=2, skip=1" in shown.splitlines()[0]
    assert "| Chain-SD | " in shown, "a fixed name would state another length"
    assert "| Flash-AR (not run) | —" in shown
    command = next(line for line in shown.splitlines() if "made by `" in line)
    for override in ("method=chain_sd", "method.length=4", "prompts=2", "skip=1"):
        assert f" {override}" in command


def test_a_whole_sweep_replaces_its_own_rows_and_keeps_added_ones(project: Project) -> None:
    notes = sweep(project, methods=("std", "flash_ar", "chain_sd"))
    project.table(notes[:1] + notes[2:], "method=std,chain_sd")
    project.table(notes[:2])
    members = project.store.members(project.asked().folder)
    assert {member.labels["method"] for member in members} == {"std", "flash_ar", "chain_sd"}
    project.table(notes)
    project.table(notes[:2])
    members = project.store.members(project.asked().folder)
    assert {member.labels["method"] for member in members} == {"std", "flash_ar"}
    assert project.store.get(notes[2].key) is not None, "what a table drops is loose again"


def test_provenance_is_complete(project: Project) -> None:
    record = project.record(QUICK, "method=edgellm")
    p = record.provenance
    assert set(p.inputs) == {"target", "draft", "dataset"}
    assert not {"data_dir", "results", "outputs"} & p.config.keys()
    assert (p.versions["method edgellm"], p.versions["cost model"]) == (2, 1)
    assert all(len(value) == 64 for value in (*p.inputs.values(), p.config_hash, p.sources))
    assert p.commit is None or len(p.commit) == 40
    assert (p.seed, p.clock, p.weights, p.costs) == (0, "virtual", "proxy", "predicted")
    assert {"python", "torch", "transformers", "hydra-core", "datasets"} <= set(p.packages)
    assert "absent" not in p.packages.values()
    assert "lever.table1.qwen3_8b.io" in p.fitted
    assert p.memory["resident_set"] > 1e8
    assert 1e9 < p.memory["emulated_dram"] < p.budget == 12e9
    assert p.trace is not None
    assert json.loads(gzip.decompress((project.out / "outputs" / p.trace).read_bytes()))["traceEvents"]
    assert p.started <= p.finished
    assert record.labels == {
        "method": "edgellm",
        "device": "OnePlus 12",
        "dataset": "humaneval",
        "target": "Qwen3-8B",
        "draft": "Qwen3-0.6B",
        "agreement": "native",
    }
    rounds = project.store.rounds(record.key)
    assert len(rounds) == record.values["target_calls"]
    assert sum(int(r["emitted"] or 0) for r in rounds) == record.values["decode_tokens"]


def test_cells_on_the_wall_clock_wait_for_each_other(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process holds the machine, a real cell waits and an emulated one does not."""
    local = ("device=local_cpu", "device.pace=null", "method=std", "prompts=1", "repeats=1", "cooldown=0")
    config = project.config(*local)
    notes: list[Note] = []
    with once_lock():
        waiting = threading.Thread(
            target=lambda: notes.append(Sweep(config, Console(file=io.StringIO())).cell(config))
        )
        waiting.start()
        assert project.cell(QUICK, "method=std").state == "done"
        waiting.join(timeout=2)
        assert waiting.is_alive()
        assert not notes
    waiting.join(timeout=60)
    assert states(notes) == ["done"]


def once_lock() -> Any:
    from filelock import FileLock

    build_cache.cache_root().mkdir(parents=True, exist_ok=True)
    return FileLock(build_cache.cache_root() / "wall-clock.lock")


def worker(project: Project, started: Any) -> None:
    """A sweep in a process of its own, for being killed."""
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    os.environ["REPRO_CACHE"] = str(project.out / "cache")
    started.set()
    project.table(sweep(project))


def test_a_killed_sweep_resumed_gives_the_unbroken_table(
    shared: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the first record and at four random moments, each going on where the one before stood."""
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "whole" / "cache"))
    whole = shared.apart(tmp_path / "whole")
    since = time.monotonic()
    whole.table(sweep(whole))
    lasts = time.monotonic() - since
    broken = shared.apart(tmp_path / "broken")
    chance = random.Random(0)
    forked = multiprocessing.get_context("fork")
    exits = []
    for attempt in range(5):
        started = forked.Event()
        process = forked.Process(target=worker, args=(broken, started))
        process.start()
        started.wait()
        while not attempt and process.is_alive() and not any(broken.store.folder.glob("*.jsonl")):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, lasts / 2) if attempt else 0)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        exits.append(process.exitcode)
        assert [r.done for r in broken.store.all()] == [True] * len(broken.store.all())
    monkeypatch.setenv("REPRO_CACHE", str(broken.out / "cache"))
    assert exits[0] == -signal.SIGKILL, "the first was over before it was killed"
    notes = sweep(broken)
    assert set(states(notes)) <= {"cached", "done"}
    broken.table(notes)
    assert broken.tables() == whole.tables()
    assert broken.timelines() == whole.timelines()
