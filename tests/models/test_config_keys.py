"""Entries of `config.json` mean what transformers' object of the same file says, or are refused."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import transformers as hf

from public_configs import PUBLIC
from repro.core.errors import InputError
from repro.methods.speculative.drafting import eagle_head
from repro.models.checkpoints import config_settings
from repro.models.checkpoints.origin import Checkpoint
from repro.models.transformer import weights
from repro.models.transformer.families import FAMILIES, config_of
from tiny_families import write

CONF = Path(__file__).resolve().parents[2] / "conf" / "model" / "checkpoint"
SHAPE = {"num_hidden_layers": 4, "num_attention_heads": 32, "max_position_embeddings": 256}
COMMON = {"vocab_size": 131, "hidden_size": 256, "intermediate_size": 96, **SHAPE}
SHAPES = {
    "opt": {"vocab_size": 131, "hidden_size": 256, "ffn_dim": 96, **SHAPE},
    "gpt2": {"vocab_size": 131, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 256},
}
KINDS = sorted(FAMILIES.keys() - {"gemma3"})
"""All but the multimodal one, which has its text model's entries one level below."""

LINEAR = {"type": "linear", "factor": 4.0}
LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
NEW = {"rope_type": "default", "rope_theta": 1e6}
MIXED = ["sliding_attention", "full_attention"] * 2
CHANGES: dict[str, dict[str, Any]] = {
    "nothing, so that defaults count": {},
    "few key heads": {"num_key_value_heads": 2},
    "no key heads": {"num_key_value_heads": None},
    "width of heads": {"head_dim": 24},
    "theta": {"rope_theta": 5e5},
    "no scaling": {"rope_scaling": None, "rope_theta": 1e6},
    "empty scaling": {"rope_scaling": {}},
    "old scaling": {"rope_scaling": LINEAR},
    "both scalings": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_parameters": NEW},
    "both scalings and theta": {"rope_scaling": LINEAR, "rope_theta": 3e5, "rope_parameters": NEW},
    "theta twice": {"rope_parameters": NEW, "rope_theta": 7.0},
    "theta beside": {"rope_parameters": {"rope_type": "default"}, "rope_theta": 7.0},
    "llama 3": {"rope_scaling": LLAMA_3},
    "llama 3 by 64": {"rope_scaling": LLAMA_3 | {"original_max_position_embeddings": 64}},
    "yarn beside plain": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "rope_parameters": NEW},
    "window": {"sliding_window": 7},
    "no window": {"sliding_window": None},
    "window of 0": {"sliding_window": 0},
    "unused window of 0": {"sliding_window": 0, "use_sliding_window": False},
    "used window of 0": {"sliding_window": 0, "use_sliding_window": True},
    "used window": {"use_sliding_window": True},
    "window of last layers": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    "full layers": {"layer_types": ["full_attention"] * 4},
    "mixed layers": {"layer_types": MIXED},
    "mixed layers and a window": {"layer_types": MIXED, "use_sliding_window": True, "sliding_window": 5},
    "layers of another kind": {"layer_types": ["chunked_attention"] * 4},
    "too few layer types": {"layer_types": MIXED[:3], "use_sliding_window": True},
    "part rotated": {"partial_rotary_factor": 0.5},
    "all rotated": {"partial_rotary_factor": 1.0},
    "part rotated below": {"rope_parameters": NEW | {"partial_rotary_factor": 0.25}},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "not tied": {"tie_word_embeddings": False},
    "epsilons": {"rms_norm_eps": 1e-3, "layer_norm_eps": 1e-3, "layer_norm_epsilon": 1e-3},
    "activations": {"hidden_act": "gelu", "hidden_activation": "gelu", "activation_function": "gelu"},
    "pattern": {"sliding_window_pattern": 2},
    "local theta": {"rope_local_base_freq": 77.0},
    "query scale": {"query_pre_attn_scalar": 20},
    "no cap": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "cap": {"final_logit_softcapping": 3.0},
    "rope by layers": {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}},
    "norms after": {"do_layer_norm_before": False},
    "narrow embeddings": {"word_embed_proj_dim": 32},
    "inner width": {"n_inner": 40},
    "width twice": {"hidden_size": 64, "n_embd": 32},
    "both directions": {"use_bidirectional_attention": True},
    "layers of their own": {"per_layer_config": {"1": {"hidden_act": "relu"}}},
    "harmless": {"pad_token_id": 3, "pretraining_tp": 2, "use_cache": False, "attention_dropout": 0.1},
    "unknown": {"banana": 1, "torch_dtype": "float16"},
}
STRICTER = {("gemma3_text", "old scaling"), ("gpt2", "width twice"), ("gemma2", "no window")}
STRICTER |= {("gemma3_text", "no window")}
"""Refused here although transformers makes an object: the first is dropped by it without a word, the second
says two things, and the others fail there when they compute."""


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPRO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def judged(kind: str, raw: dict[str, Any]) -> Any:
    """Our reading of transformers' own object of the file; None if it makes none, or one that is refused."""
    entries = json.loads(json.dumps({name: value for name, value in raw.items() if name != "model_type"}))
    try:
        theirs = hf.CONFIG_MAPPING[kind].from_dict(entries)
        return config_of({**json.loads(theirs.to_json_string(use_diff=False)), "model_type": kind})
    except Exception:  # transformers raises many kinds
        return None


def ours(raw: dict[str, Any]) -> Any:
    try:
        return config_of(raw)
    except InputError:
        return None


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_entries_mean_what_transformers_object_says(kind: str) -> None:
    read = 0
    for name, change in CHANGES.items():
        raw = {"model_type": kind, **SHAPES.get(kind, COMMON), **change}
        found, expected = ours(raw), judged(kind, raw)
        if found is None:
            assert expected is None or (kind, name) in STRICTER, name
        elif expected is not None:
            assert found == expected, name
            read += 1
    assert read > len(CHANGES) / 2


def known(kind: str) -> set[str]:
    """Entries that transformers' class of a family, its base and its model's code know."""
    cls = hf.CONFIG_MAPPING[kind]
    package = cls.__module__.rpartition(".")[0]
    modules = [import_module(cls.__module__)]
    modules.append(import_module(f"{package}.modeling_{package.rpartition('.')[2]}"))
    source = "".join(map(inspect.getsource, modules))
    patterns = (r"config\.(\w+)", r"getattr\(\s*(?:self\.)?config, \"(\w+)\"", r"kwargs\.\w+\(\"(\w+)\"")
    used = {name for pattern in patterns for name in re.findall(pattern, source)}
    return {field.name for field in dataclasses.fields(cls)} | set(cls.attribute_map) | used


def test_entries_that_nobody_knows_are_named_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    config_settings._warn.cache_clear()
    raw = {"model_type": "llama", **COMMON, "attention_multiplier": 0.5, "banana": 1, "rope_theta": 1e4}
    for _ in range(3):
        config_of(raw)
    assert [record.message for record in caplog.records] == [
        "config.json of llama: ignored, as by transformers: attention_multiplier, banana"
    ]


def test_a_setting_of_a_future_release_is_refused_unless_it_has_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class FutureConfig(hf.LlamaConfig):
        attention_sinks: int = 0

    monkeypatch.setattr("transformers.CONFIG_MAPPING", {"llama": FutureConfig})
    monkeypatch.setattr(config_settings, "version", lambda package: "of tomorrow")
    raw = {"model_type": "llama", **COMMON}
    assert config_of({**raw, "attention_sinks": 0}) == config_of(raw)
    with pytest.raises(InputError, match="llama with attention_sinks=4 is not supported; only 0 is"):
        config_of({**raw, "attention_sinks": 4})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rms_norm_eps": "1e-6"}, r"'rms_norm_eps' expected float, got str \(value: '1e-6'\)"),
        ({"rms_norm_eps": float("nan")}, "config.json.rms_norm_eps is nan; it must be a finite number"),
        ({"rope_theta": "10000", "rope_parameters": None}, "rope_theta='10000'; it must be a number above 0"),
        ({"rope_parameters": "linear"}, "'rope_parameters' with value 'linear'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'rope_type'='linear': {'factor'}"),
        ({"rope_scaling": {"rope_type": ["linear"], "factor": 4.0}}, r"rope type \['linear'\]. Choices: def"),
        ({"attention_bias": 1}, "'attention_bias' expected bool, got int"),
        ({"hidden_size": 64.0}, r"hidden_size=64\.0; it must be a whole number above 0"),
        ({"intermediate_size": -96}, "intermediate_size=-96; it must be above 0"),
        ({"vocab_size": True}, "vocab_size=True; it must be a whole number above 0"),
        ({"num_attention_heads": 3, "head_dim": None}, r"\(64\) is not a multiple .* heads \(3\)"),
        ({"num_key_value_heads": 3}, "4 heads for 3 of keys"),
        ({"layer_types": "full_attention"}, "`layer_types` entries must be in .* but got"),
        ({"shares_embeddings": 1}, "shares_embeddings=1; it must be true or false"),
        ({"model_type": ["llama"]}, r"unknown model_type \['llama'\]"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_its_file(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    write("llama-2", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    with pytest.raises(InputError, match=says) as caught:
        weights.load(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}: ")


def test_the_public_models_of_conf_are_not_refused(caplog: pytest.LogCaptureFixture) -> None:
    """As far as their `config.json` is known; other code reads encoder-decoders, encoders, Medusa's heads."""
    checkpoints = [Checkpoint.from_yaml(path) for path in sorted(CONF.glob("*.yaml"))]
    repos = {one.hub.repo for one in checkpoints if one.hub}
    others = {repo for repo in repos if re.search(r"t5|bart|medusa|bert|MiniLM", repo)}
    assert repos - others == set(PUBLIC)
    for repo, (raw, layers, theta) in PUBLIC.items():
        head = eagle_head.config_of(raw)
        config = head.layer if head else config_of(raw)
        assert (config.layers, config.rope.theta if config.rope else None) == (layers, theta), repo
    ignored = {name for r in caplog.records for name in r.message.partition("transformers: ")[2].split(", ")}
    assert ignored & {"rope_theta", "rope_scaling", "head_dim"} == set()
