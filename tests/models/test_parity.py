"""Random configurations of the supported families against `transformers`; settings that are refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from repro.core.errors import InputError
from repro.models.transformer import families, weights
from repro.models.transformer.cache import KVCache
from tiny_families import FAMILIES, VOCAB, noised, write

MANY = 30
ROWS = 40
CHUNKS = (0, 17, 18, 19, ROWS)
# As in test_families: logits reach about 15, rounding moves them by a few 1e-5, a misplaced part by 1e-2.
TOLERANCE = 1e-4
POSITIONS = 64
ACTS = ("silu", "relu", "gelu", "gelu_new", "gelu_pytorch_tanh")


def shape(chance: random.Random, equal_heads: bool = False) -> dict[str, Any]:
    kv, groups = chance.choice((1, 2, 3)), 1 if equal_heads else chance.choice((1, 2, 4))
    heads = kv * groups
    return {
        "vocab_size": VOCAB,
        "hidden_size": heads * chance.choice((8, 16, 24)),
        "intermediate_size": chance.choice((40, 96)),
        "num_hidden_layers": chance.choice((1, 2, 3)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": chance.random() < 0.5,
        "rms_norm_eps": chance.choice((1e-6, 1e-5, 1e-3)),
    }


def rope(chance: random.Random) -> dict[str, Any]:
    theta = chance.choice((100.0, 10_000.0, 500_000.0))
    llama_3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return chance.choice(
        (
            {"rope_type": "default", "rope_theta": theta},
            {"rope_type": "linear", "rope_theta": theta, "factor": chance.choice((2.0, 4.5))},
            {"rope_type": "llama3", "rope_theta": theta, "original_max_position_embeddings": 16, **llama_3},
        )
    )


def kinds(chance: random.Random, layers: int) -> list[str]:
    return [chance.choice(("sliding_attention", "full_attention")) for _ in range(layers)]


def llama(chance: random.Random) -> hf.PreTrainedConfig:
    return hf.LlamaConfig(
        **shape(chance),
        rope_parameters=rope(chance),
        head_dim=chance.choice((None, 8, 20)),
        attention_bias=chance.random() < 0.5,
        mlp_bias=chance.random() < 0.5,
        hidden_act=chance.choice(ACTS),
    )


def mistral(chance: random.Random) -> hf.PreTrainedConfig:
    window, head_dim = chance.choice((None, 1, 7, 100)), chance.choice((8, 20))
    return hf.MistralConfig(
        **shape(chance), rope_parameters=rope(chance), sliding_window=window, head_dim=head_dim
    )


def qwen(chance: random.Random) -> hf.PreTrainedConfig:
    own = shape(chance)
    windows = {"use_sliding_window": True, "sliding_window": chance.choice((3, 9))}
    windows["layer_types"] = kinds(chance, own["num_hidden_layers"])
    own |= {"rope_parameters": rope(chance)} | (windows if chance.random() < 0.5 else {})
    if chance.random() < 0.5:
        return hf.Qwen2Config(**own)
    return hf.Qwen3Config(**own, head_dim=chance.choice((8, 20)), attention_bias=chance.random() < 0.5)


def gemma(chance: random.Random) -> hf.PreTrainedConfig:
    own = shape(chance) | {"head_dim": chance.choice((8, 20))}
    return hf.GemmaConfig(**own, rope_parameters=rope(chance), attention_bias=chance.random() < 0.5)


def gemma_2(chance: random.Random) -> hf.PreTrainedConfig:
    own = shape(chance) | {"head_dim": chance.choice((8, 20))}
    caps = {f"{which}_logit_softcapping": chance.choice((None, 3.0, 20.0)) for which in ("attn", "final")}
    common = {
        "sliding_window": chance.choice((3, 9)),
        "query_pre_attn_scalar": chance.choice((8, 30)),
        "layer_types": kinds(chance, own["num_hidden_layers"]),
        "hidden_activation": chance.choice(ACTS),
        **caps,
    }
    if chance.random() < 0.5:
        return hf.Gemma2Config(**own, **common, rope_parameters=rope(chance))
    common["attn_logit_softcapping"] = None
    ropes = {kind: rope(chance) for kind in ("sliding_attention", "full_attention")}
    return hf.Gemma3TextConfig(**own, **common, rope_parameters=ropes)


def phi(chance: random.Random) -> hf.PreTrainedConfig:
    own = shape(chance, equal_heads=chance.random() < 0.5)
    own["layer_norm_eps"] = own.pop("rms_norm_eps")
    share = chance.choice((0.25, 0.5, 0.75, 1.0))
    return hf.PhiConfig(**own, partial_rotary_factor=share, hidden_act=chance.choice(ACTS))


def opt(chance: random.Random) -> hf.PreTrainedConfig:
    own = shape(chance, equal_heads=True)
    names = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
    )
    return hf.OPTConfig(
        **{name: own[name] for name in names},
        ffn_dim=own["intermediate_size"],
        word_embed_proj_dim=chance.choice((own["hidden_size"], 12)),
        do_layer_norm_before=chance.random() < 0.5,
        _remove_final_layer_norm=chance.random() < 0.3,
        enable_bias=chance.random() < 0.7,
        activation_function=chance.choice(ACTS),
    )


def gpt_2(chance: random.Random) -> hf.PreTrainedConfig:
    own = shape(chance, equal_heads=True)
    return hf.GPT2Config(
        vocab_size=VOCAB,
        n_embd=own["hidden_size"],
        n_layer=own["num_hidden_layers"],
        n_head=own["num_attention_heads"],
        n_positions=POSITIONS,
        n_inner=chance.choice((None, 40)),
        activation_function=chance.choice(ACTS),
        layer_norm_epsilon=own["rms_norm_eps"],
        tie_word_embeddings=own["tie_word_embeddings"],
    )


DRAWN: tuple[Callable[[random.Random], hf.PreTrainedConfig], ...] = (
    llama,
    mistral,
    qwen,
    gemma,
    gemma_2,
    phi,
    opt,
    gpt_2,
)


@pytest.mark.parametrize("seed", range(MANY))
def test_a_random_configuration_gives_the_logits_of_transformers(seed: int, tmp_path: Path) -> None:
    """In one pass, and in chunks and single tokens over a cache."""
    chance = random.Random(seed)
    config = DRAWN[seed % len(DRAWN)](chance)
    model = noised(config, seed)
    model.save_pretrained(tmp_path)
    tokens = torch.randint(VOCAB, (ROWS,), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        expected = model(tokens[None]).logits[0]
    assert expected.abs().max() > 1.0
    decoder = weights.load(tmp_path)
    for cuts in ((0, ROWS), CHUNKS):
        cache = KVCache(decoder.config, 4)
        found = [decoder.forward(tokens[a:b], torch.arange(a, b), None, cache) for a, b in pairwise(cuts)]
        apart, largest = (torch.cat(found) - expected).abs().max(), expected.abs().max()
        assert apart < TOLERANCE * max(1.0, largest / 15), f"{apart:.2e} of {largest:.1f}: {config}"


def raw(name: str) -> dict[str, Any]:
    """A family's `config.json`."""
    return {**FAMILIES[name]().to_dict()}


PART_OF_LOCAL_LAYERS = raw("gemma-3")["rope_parameters"]
PART_OF_LOCAL_LAYERS["sliding_attention"]["partial_rotary_factor"] = 0.25


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        (
            "llama-2",
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_parameters": None},
            "'dynamic'",
        ),
        (
            "llama-2",
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
            "'yarn'.*default, linear, llama3",
        ),
        ("llama-2", {"hidden_act": "mish"}, "activation 'mish'.*relu, silu"),
        ("mistral", {"sliding_window": 0}, "sliding_window=0; it must be above 0"),
        ("qwen-3", {"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0\.5 is not supported; only 1 is"),
        (
            "gemma-3",
            {"rope_parameters": PART_OF_LOCAL_LAYERS},
            r"gemma3_text with partial_rotary_factor=0\.25",
        ),
        ("gemma-2", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("gemma-3", {"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping=50\.0"),
        ("phi-2", {"qk_layernorm": True}, "qk_layernorm=True"),
        ("phi-2", {"partial_rotary_factor": 0.45, "rope_parameters": None}, "7 of 16 dimensions"),
        ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine=False"),
        ("gpt-2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ("gpt-2", {"model_type": "mamba"}, "model_type 'mamba'.*gemma, gemma2.*qwen3"),
    ],
)
def test_a_setting_that_is_not_computed_is_refused_by_name(
    name: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        families.config_of(raw(name) | changes)


@pytest.mark.parametrize("name", ["llama-2", "gpt-2", "opt"])
def test_fewer_layers_than_the_file_has_are_refused(name: str, tmp_path: Path) -> None:
    write(name, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    layers = "n_layer" if name == "gpt-2" else "num_hidden_layers"
    path.write_text(json.dumps(config | {layers: 3}), encoding="utf-8")
    with pytest.raises(InputError, match=rf"{tmp_path} names 3 layers .*\.3\.\*"):
        weights.load(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    fewer = {tensor: value for tensor, value in tensors.items() if ".3." not in tensor}
    save_file(fewer, tmp_path / "model.safetensors")
    assert weights.load(tmp_path).config.layers == 3
