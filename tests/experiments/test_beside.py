"""Settings of one component stand beside the rest: in a sweep, in an experiment, in the files they leave."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from repro import commands
from repro.records.results import Results
from tiny_project import Project

pytestmark = pytest.mark.usefixtures("no_pictures")


def table_rows(folder: Path) -> list[str]:
    """The first cells of the rows of a Markdown table."""
    lines = (folder / "table.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ")][1:]
    return [
        " ".join(line.split(" | ")[:2]).removeprefix("| ") for line in rows if not line.startswith("| ---")
    ]


def test_a_sweep_s_rows_are_in_the_grid_s_order_with_speedups_and_what_does_nothing(project: Project) -> None:
    """EdgeLLM that falls back drafts until its threshold, whatever `length` says."""
    ended = project.here(
        "-m", "method=flash_ar,edgellm,chain_sd", "chain_sd.length=2,4", "edgellm.length=2,4"
    )
    assert ended.returncode == 0, ended.stderr
    (folder,) = (project.out / "results" / "sweeps").iterdir()
    assert table_rows(folder)[:5] == ["Flash-AR ", "EdgeLLM 2", "EdgeLLM 4", "Chain-SD 2", "Chain-SD 4"]
    text = (folder / "table.md").read_text(encoding="utf-8")
    assert "| Speedup over Flash-AR (×) ↑ |" in text
    assert "method.length changes no figure of EdgeLLM here." in text
    assert commands.run("table", [f"sweeps/{folder.name}", "--results", str(folder.parents[1])]) == 0
    assert (folder / "table.md").read_text(encoding="utf-8") == text


def test_a_changed_setting_is_a_row_of_the_experiment_with_its_speedup(project: Project) -> None:
    ended = project.here("experiment=quickstart", "chain_sd.length=2", "method=flash_ar,chain_sd")
    assert ended.returncode == 0, ended.stderr
    (folder,) = (project.out / "results").glob("quickstart@*")
    (members,) = (Results(project.out / "results").members(name) for name in [folder.name])
    assert {member.labels["method"] for member in members} == {"flash_ar", "chain_sd, length 2"}
    assert any("chain_sd.length=2" in member.overrides for member in members)


def test_the_form_that_is_named_changes_the_figures(project: Project) -> None:
    """Chunks in order take longer than those that Eq. 6 chooses."""
    places = [word for word in project.overrides if word.startswith(("results=", "outputs=", "wandb.mode="))]
    table = ["experiment=mllm_npu/table4", "setup=mllm_2wiki", "model@target=phi_2_int8"]
    seconds = {}
    for order in ("out_of_order", "in_order"):
        chosen = f"method.order={order}"
        done = project.bare(project.out, *table, "method=mllm_npu", "prompts=1", *places, chosen)
        assert done.returncode == 0, done.stderr
        (path,) = (project.out / "results" / "mllm_npu").glob(f"table4@*{chosen}*/table.csv")
        lines = pd.read_csv(path)
        seconds[order] = lines[lines["column"] == "ours"].set_index("id")["ours"].dropna()
    assert len(seconds["in_order"]) == 1
    assert (seconds["in_order"] > 1.2 * seconds["out_of_order"]).all()
