"""`repro fetch --for` names the papers' own checkpoints, their sizes and what they take."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from repro import commands
from repro.core.errors import InputError
from repro.experiments.needed import needs
from tiny_checkpoints import alone
from tiny_hub import described, write

__all__ = ["alone"]

pytestmark = pytest.mark.usefixtures("alone")

PARAMETERS = {"qwen3_8b": 8_190_735_360, "qwen3_0_6b": 596_049_920}
"""As their public checkpoints have them."""


def test_lever_table_5_needs_the_papers_pair_and_its_head() -> None:
    found = needs("lever/table5")
    models = {model.checkpoint.name: model for model in found.models}
    assert {*models} == {"qwen3_8b", "qwen3_0_6b", "eagle3_qwen3_8b"}
    for name, parameters in PARAMETERS.items():
        assert models[name].parameters == pytest.approx(parameters, rel=1e-3)
        assert models[name].size_bytes == pytest.approx(2 * parameters, rel=1e-3), "16 bits a weight"
    assert found.memory_bytes == pytest.approx(4 * sum(PARAMETERS.values()), rel=1e-3), "float32"
    assert not any(model.at_hand or model.needs_login for model in found.models)


def test_the_hub_says_sizes_commits_and_who_must_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        SimpleNamespace(rfilename="model.safetensors", size=7),
        SimpleNamespace(rfilename="a.bin", size=9),
    ]
    info = SimpleNamespace(siblings=files, sha="c0ffee", gated="manual")
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, repo, **_: info)
    found = needs("ghidorah/table1_vicuna")
    assert [model.checkpoint.name for model in found.models] == ["vicuna_7b_medusa", "vicuna_7b_v1_3"]
    for model in found.models:
        assert (model.size_bytes, model.revision, model.needs_login) == (7, "c0ffee", True)
    assert any("log in (HF_TOKEN)" in line for line in found.lines())


def test_it_opens_what_the_hubs_cache_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hub").mkdir()
    folders = [write(tmp_path / "hub", name) for name in ("vicuna_7b_medusa", "vicuna_7b_v1_3")]
    assert commands.run("fetch", ["--for", "experiment=ghidorah/table1_vicuna", "--offline"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("ghidorah/table1_vicuna with weights=own: 2 checkpoints, ")
    assert all(f"at hand in {folder}" in printed for folder in folders)
    assert described("vicuna_7b_v1_3").hub is not None
    assert commands.run("fetch", ["--for", "experiment=lever/table5", "--offline"]) == 1
    assert "qwen3_8b is in none of its places" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "reason"), [("lever/tabel5", "lever/table5"), ("mllm_npu/fig8", "costs alone")]
)
def test_what_needs_no_weights_is_said(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        needs(name)
