"""Settings that were renamed: each is documented, leads to one that there is, and is not in use again."""

from __future__ import annotations

import pytest
import yaml

from repro.core.errors import InputError
from repro.core.paths import conf_dir, project_root
from repro.experiments.renamed import GONE, RENAMED, check_overrides, renamed


def test_every_renamed_setting_is_documented_and_leads_somewhere() -> None:
    settings = yaml.safe_load((conf_dir() / "config.yaml").read_text(encoding="utf-8"))
    groups = {path.name for path in conf_dir().iterdir() if path.is_dir()}
    changes = (project_root() / "docs" / "changes.md").read_text(encoding="utf-8")
    for old, new in RENAMED.items():
        assert new in settings or new in groups
        assert old not in settings
        assert old not in groups
        assert f"`{old}=" in changes
        assert f"`{new}=" in changes


def test_every_removed_group_is_documented_and_gone() -> None:
    groups = {path.name for path in conf_dir().iterdir() if path.is_dir()}
    changes = (project_root() / "docs" / "changes.md").read_text(encoding="utf-8")
    for old, instead in GONE.items():
        assert old not in groups
        assert f"{old}=" in changes
        assert "=" in instead


@pytest.mark.parametrize(
    ("override", "instead"),
    [
        ("pair=mlc_gpu_gemma_2b", "method=mlc_gpu model@target=gemma_2b_int8"),
        ("method_preset=bnv", "method.navigation=false"),
        ("ablation=bnv", "method.navigation=false"),
        ("+objective=ttft20_tpot50", "app.ttft=0.6 app.tpot=0.8"),
    ],
)
def test_a_removed_group_is_answered_with_what_to_write(override: str, instead: str) -> None:
    with pytest.raises(InputError, match="no group") as raised:
        check_overrides([override])
    assert instead in str(raised.value)


@pytest.mark.parametrize("override", ["match=x", "+native=true", "~workload=t5", "calibration=2"])
def test_an_old_name_is_answered_with_the_new_one(override: str) -> None:
    with pytest.raises(InputError, match="is called"):
        check_overrides(["prompts=2", override])


def test_other_overrides_pass() -> None:
    check_overrides(["prompts=2", "method.match=1", "hydra.run.dir=x", "--multirun", "match"])
    assert renamed("prompts") is None
