"""`import repro` from Python: the documented example, what arguments become, frames, and errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import records
import repro
from repro.core.errors import InputError
from repro.core.paths import project_root
from repro.records.results import Results
from tiny_project import Project


def settings(project: Project) -> dict[str, object]:
    """The project's overrides as arguments."""
    return {key: value for key, _, value in (one.partition("=") for one in project.overrides)}


def test_the_documented_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(project_root() / "results")
    blocks = re.findall(
        r"```python\n(.*?)```", (project_root() / "docs" / "run.md").read_text(encoding="utf-8"), re.DOTALL
    )
    blocks = [block for block in blocks if "polars" not in block]
    assert len(blocks) == 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)


def test_importing_repro_imports_nothing_else() -> None:
    heavy = "('repro.', 'hydra', 'torch', 'pandas', 'numpy', 'rich')"
    code = f"import sys, repro; print(sorted(m for m in sys.modules if m.startswith({heavy})))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        repro.nothing  # noqa: B018


def test_a_cell_of_the_command_is_found_from_python(project: Project) -> None:
    note = project.cell("method=chain_sd", "method.length=2")
    record = repro.run({**settings(project), "method.length": 2}, method="chain_sd")
    assert record.key == note.key
    assert record.provenance.config["method"]["length"] == 2
    assert len(project.store.all()) == 1


def test_a_sweep_is_a_frame_and_a_failed_cell_keeps_its_row(project: Project) -> None:
    frame = repro.sweep({"method": ["std", "chian_sd"], "max_tokens": [4, 6]}, settings(project))
    assert list(frame["max_tokens"]) == [4, 6, 4, 6]
    assert list(frame["status"]) == ["done", "done", "failed", "failed"]
    assert frame["decode_tokens_per_s"].notna().sum() == 2
    assert "Did you mean chain_sd?" in frame["error"][2]


def test_errors_name_the_right_choices(project: Project) -> None:
    with pytest.raises(InputError, match=r"method chain_sd has no setting 'lenght'\. Did you mean length"):
        repro.run({**settings(project), "method.lenght": 2}, method="chain_sd")
    with pytest.raises(InputError, match="prompts is 0; it must be a whole number"):
        repro.run({**settings(project), "prompts": 0}, method="std")
    with pytest.raises(InputError, match=r"python -m repro experiment=lever/fig99"):
        repro.table("lever/fig99", project.out / "results")
    with pytest.raises(InputError, match=r"for one cell write method=chain_sd method\.length=4"):
        repro.run({"chain_sd.length": 4}, method="flash_ar")


def test_an_experiment_is_its_cells(tmp_path: Path) -> None:
    where = {"wandb.mode": "disabled", "results": str(tmp_path / "r"), "outputs": str(tmp_path / "o")}
    with pytest.raises(InputError, match=r"has 6 cells; repro\.sweep"):
        repro.run(where, experiment="mllm_npu/fig1a")
    frame = repro.sweep({"max_tokens": [1, 2]}, where, experiment="mllm_npu/fig1a")
    assert (len(frame), set(frame["method"])) == (12, {"llama_cpp_cpu"})
    with pytest.raises(InputError, match="no cells"):
        repro.run(where, experiment="lever/claims")


def test_cells_have_labels_values_and_a_count(tmp_path: Path) -> None:
    Results(tmp_path).put(records.record("std", {"ttft": 0.5, "prompts": 3, "memory": 1.0}))
    Results(tmp_path).put(records.record("lever", {}, status="failed", error="Traceback"))
    frame = repro.cells(tmp_path).set_index("method")
    assert frame.loc["std", "n"] == 3
    assert frame.loc["std", "ttft"] == 0.5
    assert frame.loc["lever", "status"] == "failed"


def test_an_axis_is_a_list() -> None:
    with pytest.raises(InputError, match="axis method is 'std'; it must be a list"):
        repro.sweep({"method": "std"})
