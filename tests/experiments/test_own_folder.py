"""An experiment in a folder of one's own: its sweep ends with a table, a wrong table ends it first."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.core import paths
from tiny_project import Project, write_project

EXPERIMENT = """
defaults: [{override /device: oneplus_12}, {override /model@target: qwen3_8b_q4_0}]
grid: {method: [std, flash_ar]}
table: {title: Mine, rows: method, columns: [decode_speed], cite: CITE}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A tiny project, and a package whose `conf/` has room for an experiment."""
    (tmp_path / "conf" / "experiment" / "mine").mkdir(parents=True)
    monkeypatch.setattr(paths, "_folders_of_packages", lambda: (tmp_path / "conf",))
    return write_project(tmp_path)


def swept(project: Project, cite: str) -> tuple[int, str]:
    """The exit code of the experiment's sweep, and what it says on stderr."""
    file = project.root / "conf" / "experiment" / "mine" / "pair.yaml"
    file.write_text(EXPERIMENT.replace("CITE", cite), encoding="utf-8")
    done = project.here("experiment=mine/pair")
    return done.returncode, done.stderr


def test_its_folder_is_no_paper(project: Project) -> None:
    code, said = swept(project, "[]")
    assert code == 0, said
    (file,) = project.out.glob("results/mine/pair*/table.md")
    text = file.read_text(encoding="utf-8")
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")][-2:] == [
        *("| Std", "| Flash-AR"),
    ]
    entries = [line for line in text.splitlines() if line.startswith("@")]
    assert len(entries) == 1
    assert "{repro," in entries[0]


def test_a_paper_that_is_in_no_bibliography_is_named_before_any_cell(project: Project) -> None:
    code, said = swept(project, "[levr]")
    assert code == 2
    assert "table 'mine/pair' cites 'levr': there is no BibTeX entry 'levr'. Did you mean lever?" in said
    assert project.store.all() == []
