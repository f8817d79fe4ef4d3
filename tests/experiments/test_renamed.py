"""Settings that were renamed: each is documented, leads to one that there is, and is not in use again."""

from __future__ import annotations

import pytest
import yaml

from repro.core.errors import InputError
from repro.core.paths import conf_dir, project_root
from repro.experiments.renamed import RENAMED, check_overrides, renamed


def test_every_renamed_setting_is_documented_and_leads_somewhere() -> None:
    settings = yaml.safe_load((conf_dir() / "config.yaml").read_text())
    groups = {path.name for path in conf_dir().iterdir() if path.is_dir()}
    changes = (project_root() / "docs" / "changes.md").read_text()
    for old, new in RENAMED.items():
        assert new in settings or new in groups
        assert old not in settings
        assert old not in groups
        assert f"`{old}=" in changes
        assert f"`{new}=" in changes


@pytest.mark.parametrize("override", ["match=x", "+native=true", "~workload=t5", "calibration=2"])
def test_an_old_name_is_answered_with_the_new_one(override: str) -> None:
    with pytest.raises(InputError, match="is called"):
        check_overrides(["prompts=2", override])


def test_other_overrides_pass() -> None:
    check_overrides(["prompts=2", "method.match=1", "hydra.run.dir=x", "--multirun", "match"])
    assert renamed("prompts") is None
