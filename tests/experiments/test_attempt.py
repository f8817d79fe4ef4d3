"""Whatever goes wrong in a cell of a sweep fails that cell alone."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from repro.experiments.plan import plan_resolved
from repro.experiments.progress import Watcher
from repro.experiments.sweep import Sweep
from tiny_project import Project


@pytest.mark.parametrize("error", [ValueError("out of range"), RecursionError("deep"), OSError("no disk")])
def test_an_error_that_nobody_foresees_is_noted(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("repro.experiments.sweep.made", fail)
    config, watched = Project(tmp_path, tmp_path).config("method=chain_sd"), Watcher()
    sweep = Sweep(config, Console(file=io.StringIO()))
    sweep.run([plan_resolved(number, (), config) for number in range(2)], watched)
    note, again = watched.finished[0], watched.finished[1]
    assert (note.state, again.state, note.key) == ("failed", "failed", "")
    assert note.error == f"{type(error).__name__}: {error}"
    assert note.labels["method"] == "chain_sd"
    assert "Traceback" in capsys.readouterr().err
