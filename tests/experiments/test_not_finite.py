"""Nothing that is not finite becomes a `done` record; whatever a cell raises, the sweep has its table."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from repro.core.overrides import override
from repro.experiments.summaries.notes import Note
from repro.records.record import Record, canonical
from repro.records.store import Store
from repro.scenarios.base import Findings
from repro.scenarios.generation.scenario import GenerationScenario
from tiny_project import Project, write_project

QUICK = "experiment=quickstart"
pytestmark = pytest.mark.usefixtures("no_pictures")
NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = write_project(tmp_path_factory.mktemp("project"))
    for role in ("target", "draft"):
        shutil.copytree(made.root / role, made.root / f"broken_{role}")
        file = made.root / f"broken_{role}" / "model.safetensors"
        tensors = load_file(file)
        tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = torch.nan
        save_file(tensors, file, {"format": "pt"})
    rows = [{"goal": f"Goal {i}", "sol1": "an end", "sol2": f"end {i}", "label": i % 2} for i in range(2)]
    texts = [{"text": f"word{i} and {i * i} more, " * 20} for i in range(4)]
    for name, lines in (
        ("piqa", rows),
        ("wikitext-2-raw-v1_test", texts),
        ("wikitext-2-raw-v1_train", texts),
    ):
        (made.root / "data" / f"{name}.jsonl").write_text(
            "".join(canonical(row) + "\n" for row in lines), encoding="utf-8"
        )
    return made


@pytest.fixture
def project(shared: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "cache"))
    return shared.apart(tmp_path)


def failed(project: Project, note: Note) -> Record:
    """The record of a cell that failed."""
    assert note.state == "failed"
    record = project.store.get(note.key)
    assert record is not None
    assert not record.done
    return record


def broken(project: Project, role: str) -> str:
    return override(f"{role}.checkpoint.folder", f"{project.root}/broken_{role}")


WEIGHTS = {
    "greedy": ("target", "method=std"),
    "greedy, nothing cached": ("target", "method=std", "memo=false"),
    "a draft": ("draft", "method=chain_sd"),
    "a draft alone": ("draft", "method=draft"),
    "a sampled target": ("target", "method=std", "sampling.temperature=1"),
    "a sampled draft": ("draft", "method=chain_sd", "sampling.temperature=1"),
    "scored choices": ("target", "compression=fp16", "dataset=piqa"),
    "a calibrated compression": (
        "target",
        "compression=awq",
        "dataset=piqa",
        "corpus.texts=2",
        "corpus.tokens=32",
    ),
    "activations": (
        "target",
        "probe=outliers",
        "dataset=wikitext2",
        "probe.tokens=32",
        "corpus.texts=2",
        "corpus.tokens=32",
    ),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_are_not_numbers(name: str, project: Project) -> None:
    role, *overrides = WEIGHTS[name]
    note = project.cell(*overrides, broken(project, role))
    assert note.error.startswith("NotFiniteError: the largest"), note.error
    failed(project, note)


FOUND: dict[str, tuple[Callable[[Findings], Findings], str]] = {
    "a value": (lambda found: replace(found, values={**found.values, "ttft": NAN}), "'ttft' is nan"),
    "an infinite value": (
        lambda found: replace(found, values={**found.values, "ttft": INF}),
        "'ttft' is inf",
    ),
    "an error": (lambda found: replace(found, uncertainty={"ttft": NAN}), "uncertainty.ttft is nan"),
    "an interval": (
        lambda found: replace(found, uncertainty={"ttft": (0.0, INF)}),
        "uncertainty.ttft.1 is inf",
    ),
    "a round": (lambda found: replace(found, rounds=[{"start": NAN}]), "start.0 is nan"),
    "an answer": (lambda found: replace(found, answers=[{"score": -INF}]), "score.0 is -inf"),
    "provenance": (
        lambda found: replace(found, provenance={**found.provenance, "matched": {"probability": NAN}}),
        "provenance.matched.probability is nan",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_findings_that_are_not_finite(name: str, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    change, said = FOUND[name]
    find = GenerationScenario.find
    monkeypatch.setattr(GenerationScenario, "find", lambda self, progress: change(find(self, progress)))
    note = project.cell("method=draft")
    assert said in note.error
    record = failed(project, note)
    assert said in str(record.error)
    assert project.store.rounds(note.key) == []


class Sudden(Exception):
    """An exception of a kind that nobody knows."""


WORK = {
    "made": "repro.experiments.sweep.made",
    "found": "repro.scenarios.generation.scenario.GenerationScenario.find",
}
ERRORS = [ValueError("bad"), MemoryError(), OSError(5, "Input/output error"), SystemExit(3), Sudden("?")]


@pytest.mark.parametrize(
    ("place", "error"),
    [
        *(("its record", error) for error in ERRORS),
        *((place, ERRORS[-1]) for place in ("made", "found", "every record")),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_one_cell_s_exception_ends_neither_the_sweep_nor_its_table(
    place: str, error: BaseException, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raised before a run, by it, by writing what it found, or by writing even that it failed."""
    put = Store.put

    def fail(self: Any, *given: Any, **named: Any) -> Any:
        concerned = place in WORK or given[0].labels["method"] == "edgellm"
        if concerned and (place != "its record" or given[0].done):
            raise error
        return put(self, *given, **named)

    notes = []
    for method in ("std", "edgellm", "flash_ar"):
        with monkeypatch.context() as patch:
            if place not in WORK:
                patch.setattr(Store, "put", fail)
            elif method == "edgellm":
                patch.setattr(WORK[place], fail)
            notes.append(project.attempt(QUICK, f"method={method}"))
    assert [note.state for note in notes] == ["done", "failed", "done"]
    assert type(error).__name__ in notes[1].error or str(error.args[-1]) in notes[1].error
    assert (project.store.get(notes[1].key) is None) == (place in ("made", "every record"))
    files, _ = project.table(notes)
    shown = files["md"].read_text(encoding="utf-8")
    assert "| Std (resident) | 1.00" in shown
    assert "| Flash-AR | " in shown
