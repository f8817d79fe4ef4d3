"""Settings of one component stand beside the rest: in a sweep, in an experiment, in the files they leave."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from repro import commands
from repro.core.errors import InputError
from repro.core.overrides import override
from repro.experiments.command_words import check_arguments
from repro.experiments.guide.explaining import no_setting
from repro.records.results import Results
from repro.reports.spec.beside import as_typed, beside, carry_all
from tiny_project import Project, write_project


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return write_project(tmp_path_factory.mktemp("beside"))


def table_rows(folder: Path) -> list[str]:
    """The first cells of the rows of a Markdown table."""
    lines = (folder / "table.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ")][1:]
    return [
        " ".join(line.split(" | ")[:2]).removeprefix("| ") for line in rows if not line.startswith("| ---")
    ]


@pytest.mark.parametrize(
    ("override", "wrong"),
    [
        ("chain_sd.lenght=2", "method chain_sd has no setting 'lenght'. Did you mean length"),
        ("elastilm.nothing=2", "service elastilm has no setting 'nothing'"),
    ],
)
def test_a_setting_that_the_component_lacks_is_refused(override: str, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        check_arguments(["-m", override])


def test_one_cell_s_settings_are_written_without_the_component() -> None:
    with pytest.raises(InputError, match=r"for one cell write method=chain_sd method\.length=4"):
        check_arguments(["method=chain_sd", "chain_sd.length=4"])


def test_other_overrides_stay_as_they_are() -> None:
    typed = ["draft.rounded=4", "method.length=2,4", "wandb.mode=disabled", "~engine.verifies"]
    assert carry_all(typed) == typed
    assert beside("device.soc") is None
    assert [as_typed(one) for one in carry_all(["chain_sd.length=2,4", "prompts=2"])] == [
        "chain_sd.length=2,4",
        "prompts=2",
    ]


def test_a_setting_that_a_method_lacks_names_the_way() -> None:
    sentence = no_setting("method", "length", {"name": "flash_ar", "prefetch": 1, "resident": 0.0})
    assert (
        "method=chain_sd method.length=VALUE sets it, or chain_sd.length=VALUE in a sweep with a" in sentence
    )


def test_an_override_of_the_grid_is_refused() -> None:
    with pytest.raises(InputError, match=r"would come too late.*method=A,B"):
        check_arguments(["experiment=quickstart", "grid.method=[lever]"])


def test_a_sweep_s_rows_are_in_the_grid_s_order_with_speedups_and_what_does_nothing(
    shared: Project, tmp_path: Path
) -> None:
    """EdgeLLM that falls back drafts until its threshold, whatever `length` says."""
    project = shared.apart(tmp_path)
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


def test_a_changed_setting_is_a_row_of_the_experiment_with_its_speedup(
    shared: Project, tmp_path: Path
) -> None:
    project = shared.apart(tmp_path)
    ended = project.here("experiment=quickstart", "chain_sd.length=2", "method=flash_ar,chain_sd")
    assert ended.returncode == 0, ended.stderr
    (folder,) = (project.out / "results").glob("quickstart@*")
    (members,) = (Results(project.out / "results").members(name) for name in [folder.name])
    assert {member.labels["method"] for member in members} == {"flash_ar", "chain_sd, length 2"}
    assert any("chain_sd.length=2" in member.overrides for member in members)


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        (
            ("experiment=mllm_npu/table4", "mllm_npu.order=in_order"),
            "mllm_npu/table4 has no row for each method, so none for its cells; "
            "method=mllm_npu method.order=in_order changes those of mllm_npu",
        ),
        (
            ("experiment=mllm_npu/table4", "mllm_npu.window=4e9"),
            "method=mllm_npu method.window=4e9 changes those of mllm_npu",
        ),
        (
            ("experiment=quickstart", "mllm_npu.order=in_order"),
            "mllm_npu.order holds in the cells with method=mllm_npu, and this sweep has none",
        ),
        (
            ("-m", "prompts=1,2", "edgellm.length=4"),
            "edgellm.length holds in the cells with method=edgellm, and this sweep has none",
        ),
        (
            ("experiment=mllm_npu/claims", "mllm_npu.order=in_order"),
            "mllm_npu/claims has no cells, so none for mllm_npu.order",
        ),
    ],
)
def test_a_setting_that_changes_no_figure_is_refused(
    shared: Project, tmp_path: Path, command: tuple[str, ...], wrong: str
) -> None:
    project = shared.apart(tmp_path)
    ended = project.here(*command)
    assert ended.returncode == 2
    assert wrong in ended.stderr
    assert not (project.out / "results").exists()


def test_the_form_that_is_named_changes_the_figures(shared: Project, tmp_path: Path) -> None:
    """Chunks in order take longer than those that Eq. 6 chooses."""
    places = [
        override("results", tmp_path / "results"),
        override("outputs", tmp_path / "outputs"),
        "wandb.mode=disabled",
    ]
    table = ["experiment=mllm_npu/table4", "setup=mllm_2wiki", "method=mllm_npu", *places]
    seconds = {}
    for order in ("out_of_order", "in_order"):
        chosen = f"method.order={order}"
        assert shared.bare(tmp_path, *table, chosen).returncode == 0
        lines = pd.read_csv(tmp_path / "results" / "mllm_npu" / f"table4@{chosen}" / "table.csv")
        seconds[order] = lines[lines["column"] == "ours"].set_index("id")["ours"].dropna()
    assert len(seconds["in_order"]) == 5
    assert (seconds["in_order"] > 1.2 * seconds["out_of_order"]).all()
