"""An experiment in a folder of one's own: its sweep ends with a table, a wrong table ends it first."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.core import paths
from tiny_project import Project, write_project

pytestmark = pytest.mark.usefixtures("no_pictures")

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
        *("| Std", "| Flash-AR")
    ]
    entries = [line for line in text.splitlines() if line.startswith("@")]
    assert len(entries) == 1
    assert "{repro," in entries[0]


def test_a_table_of_one_cell_needs_no_grid(project: Project) -> None:
    file = project.root / "conf" / "experiment" / "mine" / "single.yaml"
    text = EXPERIMENT.replace("CITE", "[]").replace("grid: {method: [std, flash_ar]}\n", "")
    file.write_text(
        text.replace("defaults: [", "defaults: [{override /method: flash_ar}, "), encoding="utf-8"
    )
    done = project.here("experiment=mine/single")
    assert done.returncode == 0, done.stderr
    (table,) = project.out.glob("results/mine/single*/table.md")
    assert "| Flash-AR | " in table.read_text(encoding="utf-8")


def test_a_paper_that_is_in_no_bibliography_is_named_before_any_cell(project: Project) -> None:
    code, said = swept(project, "[levr]")
    assert code == 2
    assert "table 'mine/pair' cites 'levr': there is no BibTeX entry 'levr'. Did you mean lever?" in said
    assert project.store.all() == []


def test_a_phone_of_contributing_runs_with_a_setup_as_the_error_says(project: Project) -> None:
    """Flash-AR reads 3.9 GB of Qwen3-8B a token at 2 GB/s: no faster than half a token a second."""
    page = (paths.project_root() / "CONTRIBUTING.md").read_text(encoding="utf-8")
    phone = page.split("`my_methods/conf/device/my_phone.yaml`:\n\n```yaml\n")[1].partition("```")[0]
    (folder := project.root / "conf" / "device").mkdir()
    (folder / "my_phone.yaml").write_text(phone, encoding="utf-8")
    chosen = ("-m", "method=flash_ar,std", "setup=lever_qwen3_8b", "device=my_phone")
    refused = project.here(*chosen)
    assert refused.returncode == 1
    assert "engine=own takes those of the device's own file" in refused.stderr
    allowed = project.here(*chosen, "engine=own")
    assert allowed.returncode == 0, allowed.stderr
    speeds = {r.labels["method"]: r.values["decode_tokens_per_s"] for r in project.store.all() if r.done}
    assert 0.45 < speeds["flash_ar"] < 0.52
    assert " ".join([*chosen[2:], "engine=own"]) in page
