"""Whatever goes wrong in a cell of a sweep fails that cell alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.experiments import cli
from repro.experiments.sweep import Sweep, unseen
from tiny_project import Project


@pytest.mark.parametrize("error", [ValueError("out of range"), RecursionError("deep"), OSError("no disk")])
def test_an_error_that_nobody_foresees_is_noted(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Sweep, "cell", fail)
    note = cli.attempt(Project(tmp_path, tmp_path).composed("method=chain_sd"), unseen)
    assert (note.state, note.key) == ("failed", "")
    assert note.error == f"{type(error).__name__}: {error}"
    assert note.labels["method"] == "chain_sd"
    assert "Traceback" in capsys.readouterr().err
