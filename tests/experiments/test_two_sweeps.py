"""Two sweeps at once both end with all records, and wait for nothing."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from typing import Any

import pytest
import torch

from repro.experiments.summaries.notes import Note
from repro.scenarios.generation.scenario import GenerationScenario
from tiny_project import Project

QUICK = "experiment=quickstart"
METHODS = ("std", "draft", "chain_sd", "edgellm")
forked = multiprocessing.get_context("fork")


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
    project: Project, overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRO_CACHE", str(project.out / "cache"))
    if overrides:
        assert [note.state for note in sweep(project)] == ["done"] * len(METHODS)
    together = forked.Barrier(2)
    both = [forked.Process(target=counted, args=(project, name, overrides, together)) for name in "ab"]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    computed = Counter((project.out / "computed").read_text(encoding="utf-8").split())
    assert set(computed) == set(METHODS)
    states = Counter(" ".join((project.out / name).read_text(encoding="utf-8") for name in "ab").split())
    assert (states["done"], states.total()) == (computed.total(), 2 * len(METHODS))
    assert states["done"] + states["cached"] == states.total()
    assert Counter(record.status for record in project.store.all()) == {"done": len(METHODS)}
    assert project.store.problems() == []
