"""Two sweeps at once both end with all records; killed sweeps, resumed, give the unbroken one's table."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from repro.experiments.summaries.notes import Note
from repro.scenarios.generation.scenario import GenerationScenario
from tiny_project import Project, write_project

QUICK = "experiment=quickstart"
METHODS = ("std", "draft", "chain_sd", "edgellm")
KILLS = 20
"""Kills under each launcher, or more."""
TOGETHER = 5
"""Kills of a sweep before it may end."""
LAUNCHERS = {"cells": (), "dask": ("hydra/launcher=dask", "hydra.launcher.workers=2")}

forked = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_project(tmp_path_factory.mktemp("project"))


def sweep(project: Project, *overrides: str) -> list[Note]:
    return [project.cell(QUICK, f"method={method}", *overrides) for method in METHODS]


def counted(project: Project, name: str, overrides: tuple[str, ...], together: Any) -> None:
    """A sweep in a process of its own, which writes a line for each cell that it computes."""
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    os.environ["REPRO_CACHE"] = str(project.out / "cache")
    find = GenerationScenario.find

    def found(self: GenerationScenario, progress: Any) -> Any:
        with (project.out / "computed").open("a", encoding="utf-8") as file:
            file.write(f"{self.name}\n")
        time.sleep(0.2)
        return find(self, progress)

    GenerationScenario.find = found  # type: ignore[method-assign]
    together.wait()
    states = [note.state for note in sweep(project, *overrides)]
    (project.out / name).write_text(" ".join(states), encoding="utf-8")


@pytest.mark.parametrize("overrides", [(), ("sweep=force",)], ids=["run", "force"])
def test_two_sweeps_at_once_wait_for_nothing_and_leave_whole_records(
    shared: Project, tmp_path: Path, overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = shared.apart(tmp_path)
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "cache"))
    if overrides:
        assert [note.state for note in sweep(project)] == ["done"] * len(METHODS)
    together = forked.Barrier(2)
    both = [forked.Process(target=counted, args=(project, name, overrides, together)) for name in "ab"]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    computed = Counter((tmp_path / "computed").read_text(encoding="utf-8").split())
    assert set(computed) == set(METHODS)
    states = Counter(" ".join((tmp_path / name).read_text(encoding="utf-8") for name in "ab").split())
    assert (states["done"], states.total()) == (computed.total(), 2 * len(METHODS))
    assert states["done"] + states["cached"] == states.total()
    assert Counter(record.status for record in project.store.all()) == {"done": len(METHODS)}
    assert project.store.problems() == []


def command(project: Project, launcher: str, cache: Path) -> None:
    """A sweep by the command line, in a session of its own, so that its workers are killed with it."""
    os.setsid()
    torch.set_num_threads(1)
    project = Project(project.root, project.out, (*project.more, *LAUNCHERS[launcher]))
    environment = Project.environment
    Project.environment = lambda self, *path: environment(self, *path) | {"REPRO_CACHE": str(cache)}  # type: ignore[method-assign]
    done = project.here("-m", QUICK, f"method={','.join(METHODS)}")
    print(done.stderr, file=sys.stderr)
    os._exit(done.returncode)


def run(project: Project, launcher: str, lives: float | None = None) -> tuple[int, float]:
    """Start a sweep and kill it with its workers after so many seconds; its exit status and its seconds."""
    process = forked.Process(target=command, args=(project, launcher, project.out / "cache"))
    since = time.monotonic()
    process.start()
    process.join(lives)
    if process.is_alive():
        try:
            os.killpg(process.pid or 0, signal.SIGKILL)
        except ProcessLookupError:  # it has no session of its own yet
            process.kill()
        process.join()
    return process.exitcode or 0, time.monotonic() - since


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_killed_sweeps_resumed_give_the_unbroken_table(
    launcher: str, shared: Project, tmp_path: Path
) -> None:
    if launcher == "dask":
        pytest.importorskip("distributed")
    whole, chance, kills = shared.apart(tmp_path / "whole"), random.Random(0), 0
    code, lasts = run(whole, launcher)
    assert code == 0
    broken, struck = whole, TOGETHER
    for number in range(4 * KILLS):
        if struck == TOGETHER:
            broken, struck = shared.apart(tmp_path / f"broken-{number}"), 0
        ended, _ = run(broken, launcher, chance.uniform(0.05, 0.8) * lasts)
        kills, struck = (kills + 1, struck + 1) if ended == -signal.SIGKILL else (kills, TOGETHER)
        assert all(record.done for record in broken.store.all())
        assert [said for said in broken.store.problems() if not said.endswith("still writes")] == []
        if struck == TOGETHER:
            assert run(broken, launcher)[0] == 0
            assert broken.tables() == whole.tables()
            assert broken.timelines() == whole.timelines()
            if kills >= KILLS:
                break
    print(f"{launcher}: {kills} kills, no failure")
    assert kills >= KILLS, "sweeps ended before they were killed"
