"""A converted GGUF file gives the logits of the model that it was made of, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers as hf

from repro.core.errors import InputError
from repro.models.checkpoints.checkpoint import open_checkpoint
from repro.models.transformer import weights
from repro.models.transformer.cache import KVCache
from tiny_checkpoints import NOWHERE, alone
from tiny_families import SHAPE, noised
from tiny_gguf import VOCAB, Fields, write_model

__all__ = ["alone"]

pytestmark = pytest.mark.usefixtures("alone")

TOKENS = torch.randint(VOCAB, (80,), generator=torch.Generator().manual_seed(1))
THETA: Fields = (lambda w: w.add_rope_freq_base(10_000.0),)
WIDTH = 16
SIX = SHAPE | {"vocab_size": VOCAB, "num_hidden_layers": 6}
THREE = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0}
THREE |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
GEMMA: dict[str, Any] = {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}}
GEMMA["sliding_attention"] = {"rope_type": "default", "rope_theta": 10_000.0}


def stretched(parameters: dict[str, Any]) -> np.ndarray:
    """The factors of Llama 3.1's frequencies, as llama.cpp's converter computes them."""
    frequencies = parameters["rope_theta"] ** -(np.arange(0, WIDTH, 2) / WIDTH)
    turns = parameters["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    smooth = (turns - 1.0) / 3.0
    between = 1.0 / ((1.0 - smooth) / 32.0 + smooth)
    factors = np.where(turns < 1.0, 32.0, np.where(turns > 4.0, 1.0, between))
    assert factors[0] == 1.0
    assert factors[-1] == 32.0
    return factors.astype(np.float32)


def scaled(kind: str, *more: Callable[[gguf.GGUFWriter], None]) -> Fields:
    scaling = gguf.RopeScalingType(kind)
    return (*THETA, lambda w: w.add_rope_scaling_type(scaling), *more)


def llama(**more: Any) -> hf.PreTrainedConfig:
    return hf.LlamaConfig(**SHAPE | {"vocab_size": VOCAB}, **more)


READ: dict[str, tuple[hf.PreTrainedConfig, str, Fields, dict[str, np.ndarray]]] = {
    "llama": (llama(), "llama", (*THETA, lambda w: w.add_rope_dimension_count(WIDTH)), {}),
    "llama 3.2": (
        llama(rope_parameters=THREE),
        "llama",
        (lambda w: w.add_rope_freq_base(500_000.0),),
        {"rope_freqs.weight": stretched(THREE)},
    ),
    "linear": (
        llama(rope_parameters=LINEAR),
        "llama",
        scaled("linear", lambda w: w.add_rope_scaling_factor(4.0)),
        {},
    ),
    "qwen2": (hf.Qwen2Config(**SHAPE | {"vocab_size": VOCAB}), "qwen2", THETA, {}),
    "qwen3 with narrow heads": (
        hf.Qwen3Config(**SHAPE | {"vocab_size": VOCAB}, head_dim=24),
        "qwen3",
        THETA,
        {},
    ),
    "gemma2": (
        hf.Gemma2Config(**SIX, head_dim=256, sliding_window=8, attn_logit_softcapping=4.0),
        "gemma2",
        (
            *THETA,
            lambda w: w.add_sliding_window(8),
            lambda w: w.add_attn_logit_softcapping(4.0),
            lambda w: w.add_final_logit_softcapping(30.0),
        ),
        {},
    ),
    "gemma3": (
        hf.Gemma3TextConfig(**SIX, head_dim=256, sliding_window=8, rope_parameters=GEMMA),
        "gemma3",
        (
            lambda w: w.add_rope_freq_base(1e6),
            lambda w: w.add_sliding_window(8),
            lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR),
            lambda w: w.add_rope_scaling_factor(8.0),
        ),
        {},
    ),
}


def opened(path: Path) -> Path:
    return open_checkpoint(replace(NOWHERE, folder=str(path)))


@pytest.mark.parametrize("name", READ)
def test_a_converted_file_gives_the_logits_of_its_model(name: str, tmp_path: Path) -> None:
    config, kind, fields, tensors = READ[name]
    model = noised(config, 0)
    folder = opened(write_model(tmp_path / "tiny.gguf", model, kind, fields, tensors))
    with torch.no_grad():
        expected = model(TOKENS[None]).logits[0]
        again = hf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")(TOKENS[None])
    decoder = weights.load(folder)
    found = decoder.forward(TOKENS, torch.arange(len(TOKENS)), None, KVCache(decoder.config, 8))
    assert expected.abs().max() > 1.0
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(again.logits[0], expected, atol=1e-4, rtol=0)  # others read the folder too


REFUSED: dict[str, tuple[str, Fields, dict[str, np.ndarray], str]] = {
    "phi3": ("phi3", THETA, {}, r"architecture 'phi3', which is not converted here; choices: llama, qwen2"),
    "yarn": ("llama", scaled("yarn"), {}, r"llama.rope.scaling.type='yarn'"),
    "long factors": (
        "llama",
        THETA,
        {"rope_factors_long.weight": np.ones(8, np.float32)},
        "rope_factors_long",
    ),
    "factors of a qwen": ("qwen2", THETA, {"rope_freqs.weight": np.ones(8, np.float32)}, "for qwen2"),
    "experts": ("llama", (*THETA, lambda w: w.add_expert_count(8)), {}, "llama.expert_count=8"),
    "part rotated": ("llama", (*THETA, lambda w: w.add_rope_dimension_count(8)), {}, "heads of 8 and 16"),
    "window": (
        "llama",
        (*THETA, lambda w: w.add_sliding_window(64)),
        {},
        "llama.attention.sliding_window=64",
    ),
    "next year's": ("llama", (*THETA, lambda w: w.add_bool("llama.novel", True)), {}, "llama.novel=True"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_before_dequantizing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, fields, tensors, says = REFUSED[name]
    model = noised(llama(), 0)
    if kind == "phi3":
        model = noised(hf.Phi3Config(**SHAPE | {"vocab_size": VOCAB}, pad_token_id=0), 0)
    path = write_model(tmp_path / "tiny.gguf", model, kind, fields, tensors)
    monkeypatch.setattr(gguf, "dequantize", lambda *_: pytest.fail("a weight was dequantized"))
    with pytest.raises(InputError, match=says) as caught:
        opened(path)
    assert str(path) in str(caught.value)
    assert not [p for p in (tmp_path / "cache" / "checkpoints").iterdir() if p.is_dir()]
