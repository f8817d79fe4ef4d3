"""Help, lists of choices and sentences about wrong names: what a newcomer meets first."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields

import pytest
import yaml

from repro.commands import run
from repro.core import registry
from repro.core.paths import conf_dir, project_root
from repro.experiments.guide import choices, help
from repro.experiments.guide.choices import completions
from repro.experiments.guide.components import settings_of
from repro.scenarios.sections import RunSettings


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run("list", arguments) == 0
    return capsys.readouterr().out


def test_help_fits_a_screen() -> None:
    lines = help.help_text().splitlines()
    assert 20 < len(lines) <= 40
    assert max(map(len, lines)) <= help.HELP_WIDTH


def test_help_s_names_and_settings_exist() -> None:
    for group, names in help.HELP_GROUPS:
        assert set(names) <= set(choices.names(group)), group
    text = help.help_text()
    for word in ("chain_sd*", "oneplus_12*", "smollm2_135m*", "humaneval*", "prompts=10", "sweep=run"):
        assert word in text


@pytest.mark.parametrize("group", choices.GROUPS)
def test_every_choice_has_a_few_words(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    titles = choices.titles(group)
    assert len(titles) >= 2
    assert [name for name, title in titles.items() if not title] == []
    lines = [line for line in said(capsys, group).splitlines() if line and not line.endswith(":")]
    assert sorted(line.split()[0] for line in lines) == list(titles)


def test_devices_are_listed_by_chip_and_models_by_family(capsys: pytest.CaptureFixture[str]) -> None:
    parts = {part.partition(":")[0]: part for part in said(capsys, "devices").split("\n\n")}
    listed = {heading: [line.split()[0] for line in part.splitlines()[1:]] for heading, part in parts.items()}
    assert {"xiaomi_14", "oneplus_12", "jetson_tx2"} <= {*listed["The papers' phones, boards and servers"]}
    assert listed["BCM2712"][:2] == ["bcm2712", "raspberry_pi_5"]
    assert "pixel_10" in listed["Their chips have no device file yet"]
    assert "\nSmolLM, costs alone:\n  smollm_135m " in said(capsys, "models")


def test_every_component_is_read_as_it_is() -> None:
    registry.discover("repro.methods", "repro.data", "repro.metrics")
    for group in ("method", "compression", "probe", "service"):
        for name, cls in registry.registered(group).items():
            assert [setting.name for setting in settings_of(cls)] == [field.name for field in fields(cls)], (
                name
            )


def test_one_method_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "methods", "lever")
    assert "paper:      docs/lever.md" in text
    assert "construction" in text
    assert "construction      = 'greedy'  (greedy, opt_tree or specinfer)" in text
    assert "maximum depth of draft tokens" in text
    assert said(capsys, "method", "lever") == text


def test_one_file_in_full_and_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "experiments", "lever/fig10")
    assert "choose it:  experiment=lever/fig10" in text
    assert "conf/experiment/lever/fig10.yaml" in text
    assert set(choices.GROUPS) <= {line.split()[0] for line in said(capsys).splitlines()}


def test_a_run_s_settings_are_described_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of conf/config.yaml, in its order; of nested ones each, except a corpus."""
    text = (conf_dir() / "config.yaml").read_text(encoding="utf-8")
    defaults = {
        name: value for name, value in yaml.safe_load(text).items() if name not in ("defaults", "hydra")
    }
    assert [field.name for field in fields(RunSettings)] == list(defaults)
    lines = said(capsys, "settings").splitlines()
    nested = {"sampling", "wandb"}
    shown = [f"{name}.{inner}" for name in nested for inner in defaults[name]]
    assert {line.partition("=")[0] for line in lines} == {*shown, *defaults} - nested
    assert all(len(line.split()) > 1 for line in lines)
    assert "prompts=10 " in lines[2]
    assert (
        said(capsys, "settings", "prompts").splitlines()[0]
        == "  prompts = 10  (a whole number of at least 1)"
    )
    assert run("list", ["settings", "promts"]) == 2
    assert "there is no setting 'promts'. Did you mean prompts" in capsys.readouterr().err


def test_a_wrong_name_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", ["methods", "leevr"]) == 2
    assert "Did you mean lever? All " in capsys.readouterr().err
    assert run("list", ["methodes"]) == 2
    assert "there is no group 'methodes'. Did you mean methods" in capsys.readouterr().err


def test_a_table_s_settings_are_described_with_those_of_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "settings", "table").splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  table.")]
    assert {"table.rows.by", "table.columns.metric", "table.timeline.lanes.during"} <= {*names}
    meanings = [line for line in lines if not line.startswith("  table.")]
    assert len(meanings) >= len(names), "each has a meaning"
    assert all(" = " not in later for later in meanings)
    assert said(capsys, "settings", "table.rows.least").splitlines()[0].split()[0] == "table.rows.least"
    assert run("list", ["settings", "table.rowz"]) == 2
    assert "table.rows" in capsys.readouterr().err


def test_listing_imports_nothing_heavy() -> None:
    code = "import sys; from repro.commands import run; run('list', ['methods', 'lever'])\n"
    code += "print(sorted({'torch', 'hydra', 'omegaconf', 'rich', 'numpy'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(project_root() / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, encoding="utf-8"
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


class TestCompletion:
    def test_names_below_a_folder(self) -> None:
        found = completions("repro -m experiment=lever/fig1")
        assert found is not None
        assert "experiment=lever/fig10" in found
        assert all(one.startswith("experiment=lever/fig1") for one in found)

    def test_roles_and_sweeps(self) -> None:
        assert completions("repro model@target=smollm2_135m_e") == ["model@target=smollm2_135m_eagle3"]
        assert completions("repro method=std,chain_") == ["method=std,chain_sd"]
