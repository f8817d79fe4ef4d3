"""Every method on every kind of machine with nothing but names: it runs, or a sentence says where it runs."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.registry import registered
from repro.experiments.guide.explaining import check_overrides
from repro.experiments.plan import plain
from repro.experiments.summaries.notes import Note
from repro.experiments.sweep import Sweep
from repro.models.runtime.model import ModelConfig
from repro.scenarios.registry import made
from tiny_project import composed, composed_by_hydra

DEVICES = ("xiaomi_14", "jetson_orin_nx", "snapdragon_8_elite", "rk3588", "local_cpu")
NPU = {"mllm_npu", "powerinfer2_npu"}
GPU = {"mlc_gpu", "tflite_gpu", "medusa_em", "ghidorah"}
REFUSED = {
    *{(method, "local_cpu") for method in NPU | GPU | {"sti"}},
    *{(method, "jetson_orin_nx") for method in NPU},
    *{("tree_attention", device) for device in DEVICES if device != "local_cpu"},
}
"""A phone has a CPU, a GPU and an NPU, an Orin no NPU, `local_cpu` a CPU alone; STI's shards are emulated,
kernels are timed for real."""


def ours() -> list[str]:
    """The methods of this project, without those of other tests."""
    return sorted(name for name, cls in registered("method").items() if cls.__module__.startswith("repro."))


def cell(method: str, device: str) -> dict[str, Any]:
    """The configuration of a pair, from one composition for each method and device."""
    config = composed(f"method={method}")
    config.device = composed(f"device={device}").device
    return plain(config)


def test_every_pair_is_made_or_refused_before_anything_starts() -> None:
    """Refusals name a device on which the same method is made."""
    assert cell("ghidorah", "rk3588") == plain(composed("method=ghidorah", "device=rk3588"))
    refused = {}
    for method, device in product(ours(), DEVICES):
        try:
            made(cell(method, device))
        except InputError as sentence:
            refused[method, device] = str(sentence)
    assert refused.keys() == REFUSED
    for (method, _), sentence in refused.items():
        other = sentence.partition("choose device=")[2].split()[0]
        assert made(cell(method, other)).name == method


@pytest.mark.parametrize(
    ("method", "draft"),
    [
        ("chain_sd", "SmolLM2-135M draft"),
        ("lever", "SmolLM2-135M draft"),
        ("ghidorah", "SmolLM2-135M Medusa"),
    ],
)
def test_the_default_target_comes_with_what_a_method_needs(method: str, draft: str) -> None:
    assert composed(f"method={method}").draft.name == draft
    chosen = composed(f"method={method}", "model@draft=qwen3_0_6b_q4_0")
    assert chosen.draft.name == "Qwen3-0.6B"


@pytest.mark.slow
def test_every_pair_that_is_made_runs(tmp_path: Path) -> None:
    """One prompt and 8 tokens of the default models, which its wheel brings."""
    wrong = {}
    for method, device in sorted({*product(ours(), DEVICES)} - REFUSED, key=lambda pair: pair[1]):
        config = cell(method, device) | {"prompts": 1, "max_tokens": 8}
        config |= {"results": str(tmp_path / "results"), "outputs": str(tmp_path / "outputs"), "repeats": 1}
        config |= {"wandb": {**config["wandb"], "mode": "disabled"}, "data_dir": None, "cooldown": 0.0}
        try:
            note = Sweep(config).cell(config)
        except InputError as sentence:
            note = Note("", {}, "failed", error=str(sentence))
        if note.state != "done":
            wrong[method, device] = note.error
    assert wrong == {}


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_model_is_a_folder_a_gguf_file_or_a_repository(role: str, tmp_path: Path) -> None:
    folder, file = tmp_path / "My-Model", tmp_path / "my-model.Q4_0.gguf"
    folder.mkdir()
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    file.write_bytes(b"GGUF")
    for named, name in (
        (folder, "My-Model"),
        (file, "my-model.Q4_0"),
        ("some-org/their.model", "their.model"),
    ):
        check_overrides([f"model@{role}={named}"])
        model = ModelConfig.parse(plain(composed(f"model@{role}={named}"))[role])
        assert model.name == name
        assert model.shape is None, "it has the checkpoint's own"
        assert model.checkpoint is not None
        place = model.checkpoint.folder or (model.checkpoint.hub and model.checkpoint.hub.repo)
        assert place == str(named)
    (folder / "tokenizer.json").unlink()
    composed_again = composed_by_hydra(conf_dir(), (f"model@draft={folder}",))
    assert composed_again.draft.checkpoint.shares_embeddings_with, (
        "a draft without a tokenizer has its target's"
    )
    with pytest.raises(InputError, match=r"no model 'nothing_like_it'.*a folder, a \.gguf file or org/repo"):
        check_overrides([f"model@{role}=nothing_like_it"])
