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

from repro.core.errors import InputError
from repro.experiments.summaries.notes import Note
from repro.experiments.sweep import Sweep, describe_rest, summary
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.records import build_cache
from repro.reports.figures.figure import draw
from repro.scenarios.base import COST_VERSIONS
from tiny_project import METHODS, Project, write_project

QUICK = "experiment=quickstart"
pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def project(shared: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("REPRO_CACHE", str(shared.root / "cache"))
    return shared.apart(tmp_path)


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


def test_force_runs_again_and_keeps_the_older_record(project: Project) -> None:
    (note,) = sweep(project, methods=("std",))
    (again,) = sweep(project, "sweep=force", methods=("std",))
    assert (again.key, again.state) == (note.key, "done")
    texts = [path.read_text(encoding="utf-8") for path in project.store.folder.glob("*.jsonl")]
    assert sum(text.count(f'{{"cell": "{note.key}"') for text in texts) == 2


def test_list_computes_nothing(project: Project) -> None:
    sweep(project, methods=("std", "draft"))
    done = project.store.all()
    listed = sweep(project, "sweep=list", methods=("std", "draft", "chain_sd"))
    assert states(listed) == ["done", "done", "todo"]
    assert [r.key for r in project.store.all()] == [r.key for r in done]
    assert describe_rest(listed) == "1 of 3 cells to do"
    assert describe_rest(listed[:2]) == "2 of 2 cells done"


def test_a_list_looks_for_cells_of_one_kind_once(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [project.config(QUICK, "method=std", f"seed={seed}", "sweep=list") for seed in range(3)]
    project.cell(QUICK, "method=std", "seed=1")
    listing, looked = project.sweep(QUICK, "sweep=list"), []
    read = listing.store.with_labels
    monkeypatch.setattr(listing.store, "with_labels", lambda labels: looked.append(labels) or read(labels))
    assert [listing.cell(config).state for config in configs] == ["todo", "done", "todo"]
    assert len(looked) == 1


def test_a_matched_setup_lists_a_cell_without_a_draft_as_done(project: Project) -> None:
    """Only cells that ask a draft have the label of the match."""
    matched = "calibrate_draft_to=edgellm.table1.cnn_daily"
    assert states(sweep(project, matched, methods=("std",))) == ["done"]
    assert states(sweep(project, matched, "sweep=list", methods=("std",))) == ["done"]


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


def test_a_failed_cell_is_run_again_by_the_next_sweep(project: Project, broken: Callable[[], None]) -> None:
    assert states(sweep(project, methods=("edgellm",))) == ["failed"]
    assert states(sweep(project, "sweep=list", methods=("edgellm",))) == ["failed"]
    broken()
    assert states(sweep(project, methods=("edgellm",))) == ["done"]


def test_bad_input_of_one_cell_costs_only_that_cell(project: Project) -> None:
    """A target of 13 billion parameters in fp16 does not fit resident; streamed it does."""
    big = ("target.precision=fp16",)
    notes = sweep(project, *big, methods=("std", "flash_ar"))
    assert states(notes) == ["failed", "done"]
    assert "of OnePlus 12's budget of 12.00 GB only" in notes[0].error
    _, screen = project.table(notes)
    assert "std failed: repro.core.errors.InputError: target weights needs" in screen


def test_a_cell_of_another_experiment_is_used_and_shown(project: Project) -> None:
    (by_hand,) = sweep(project, "name=by_hand", methods=("std",))
    notes = sweep(project, methods=("std", "flash_ar"))
    assert states(notes) == ["cached", "done"]
    assert notes[0].key == by_hand.key
    files, _ = project.table(notes)
    known = project.store.members(project.asked().folder)
    assert {member.key for member in known} == {note.key for note in notes}
    assert "| Std (resident) | 1.00" in files["md"].read_text(encoding="utf-8")


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


def test_the_same_sweep_twice_is_the_same_byte_for_byte(
    shared: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From empty folders and an empty memory of what the models said."""
    made = []
    for name in ("one", "two"):
        monkeypatch.setenv("REPRO_CACHE", str(tmp_path / name / "cache"))
        project = shared.apart(tmp_path / name)
        project.table(sweep(project))
        made.append((project.tables(), project.timelines()))
    (tables, timelines), (tables_again, timelines_again) = made
    assert [Path(name).name for name in tables] == ["table.csv", "table.md", "table.tex"]
    assert len(timelines) == 5
    assert tables == tables_again
    assert timelines == timelines_again


def test_provenance_is_complete(project: Project) -> None:
    record = project.record(QUICK, "method=edgellm")
    p = record.provenance
    assert set(p.inputs) == {"target", "draft", "dataset"}
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


def test_an_unknown_mode_is_an_error(project: Project) -> None:
    with pytest.raises(InputError, match=r"there is no sweep mode 'retrry'\. Did you mean retry"):
        Sweep({**project.config(), "sweep": "retrry"})


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


def test_of_a_long_sweep_the_screen_has_what_is_not_done() -> None:
    states = ["done"] * 300 + ["failed"] * 2
    notes = [Note(f"{n:064x}", {"method": "std", "n": str(n)}, state) for n, state in enumerate(states)]
    screen = io.StringIO()
    Console(file=screen, width=200).print(summary(notes, "run"))
    said = screen.getvalue()
    assert "302 cells, of which 2 are not done" in said
    assert [number for number in ("0", "299", "300", "301") if f" {number} " in said] == ["300", "301"]
