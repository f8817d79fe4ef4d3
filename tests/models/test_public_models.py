"""The shapes of public models: their known numbers of parameters, and what others say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers as hf

from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.experiments.plan import plain
from repro.models.costs.model_cost import Shape
from repro.models.costs.public_models import PublicModel, public_models
from repro.models.runtime.model import ModelConfig
from repro.scenarios.base import silent
from repro.scenarios.registry import made
from tiny_project import composed, write_project

MODELS = public_models()
TOLERANCES = {"weights": 0.005, "card": 0.01, "name": 0.03}
"""How far a number of weights, without norms and biases, may be from a counted or rounded one."""

TRANSFORMERS_DEFAULTS = {
    "llama_2_7b": hf.LlamaConfig,
    "zephyr_7b": hf.MistralConfig,
    "gemma_7b": hf.GemmaConfig,
    "gemma_2_2b": hf.Gemma2Config,
    "phi_1_5": hf.PhiConfig,
    "phi_3_mini": hf.Phi3Config,
    "stablelm_3b": hf.StableLmConfig,
    "starcoder2_3b": hf.Starcoder2Config,
    "smollm3_3b": hf.SmolLM3Config,
    "ernie_4_5_0_3b": hf.Ernie4_5Config,
}
"""Models whose configuration is the default one of their class."""


@pytest.mark.parametrize(
    "model", [m for m in MODELS.values() if m.kind == "transformer"], ids=lambda m: m.name
)
def test_a_shape_has_the_known_number_of_parameters(model: PublicModel) -> None:
    assert model.shape.parameters / 1e6 == pytest.approx(model.millions, rel=TOLERANCES[model.counted])


@pytest.mark.parametrize("name", TRANSFORMERS_DEFAULTS)
def test_a_shape_is_that_of_transformers_configuration(name: str) -> None:
    config: Any = TRANSFORMERS_DEFAULTS[name]()
    shape = MODELS[name].shape
    assert (shape.layers, shape.hidden, shape.vocab) == (
        *(config.num_hidden_layers, config.hidden_size, config.vocab_size),
    )
    assert (shape.heads, shape.kv_heads) == (config.num_attention_heads, config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert (shape.head_dim, shape.intermediate) == (head_dim, config.intermediate_size)
    assert shape.tied == config.tie_word_embeddings


def test_shapes_of_one_name_are_one_shape() -> None:
    """Mistral 7B v0.3, which phones were measured with, has more tokens than the papers' v0.1."""
    files = {path.stem: path for path in (conf_dir() / "model" / "shape").glob("*.yaml")}
    both = files.keys() & MODELS.keys()
    assert {"qwen3_8b", "llama_3_1_8b", "phi_2", "mistral_7b"} <= both
    different = {name for name in both if Shape.parse(read_mapping(files[name])) != MODELS[name].shape}
    assert different == {"mistral_7b"}


def test_a_public_model_is_billed_in_the_format_that_is_asked_for() -> None:
    """Peak memory has the weights: 4.5 bits each in q4_0, 16 in fp16."""
    costs = ("method=std", "prompt_tokens=8", "max_tokens=2", "prompts=1", "device=galaxy_s23")
    peaks = {}
    for name in ("q4_0", "fp16"):
        cell = made(plain(composed(*costs, "model@target=llama_3_2_1b", f"format={name}")))
        peaks[name] = cell.run(silent).record.provenance.memory["emulated_dram"]
    weights = MODELS["llama_3_2_1b"].shape.parameters
    assert peaks["q4_0"] == pytest.approx(weights * 4.5 / 8, rel=0.02)
    assert peaks["fp16"] == pytest.approx(weights * 2, rel=0.02)


def test_a_checkpoint_of_one_s_own_computes_in_its_place(tmp_path: Path) -> None:
    folder = write_project(tmp_path).root / "target"
    config = plain(
        composed("method=std", "model@target=llama_3_2_1b", f"model/checkpoint@target.checkpoint={folder}")
    )
    model = ModelConfig.parse(config["target"])
    assert model.shape == MODELS["llama_3_2_1b"].shape
    assert model.checkpoint is not None
    assert model.checkpoint.folder == str(folder)
    without = ModelConfig.parse(plain(composed("method=std", "model@target=llama_3_2_1b"))["target"])
    assert without.checkpoint is None
