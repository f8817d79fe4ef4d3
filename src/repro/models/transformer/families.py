"""Translation of Hugging Face configurations into `DecoderConfig`, as transformers 5 reads the same file.

Owns one table entry per `model_type`. Must not read files or create tensors. An entry that transformers'
class of the family knows is read, or has its only value in the table, or is in `config_entries.HARMLESS`;
other entries are ignored with a warning, as transformers ignores them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from repro.core.errors import InputError
from repro.models.checkpoints.config_entries import Entries
from repro.models.transformer.config import Activation, DecoderConfig, Rope
from repro.models.transformer.rope_settings import choice, read_rope, rope_of
from repro.models.transformer.tensor_names import (
    GEMMA2_NAMES,
    GEMMA3_MULTIMODAL_NAMES,
    GEMMA3_NAMES,
    GPT2_NAMES,
    LLAMA_NAMES,
    OPT_NAMES,
    PHI_NAMES,
    QWEN3_NAMES,
    Names,
)

Raw = Mapping[str, Any]

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_GEMMA_1 = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")
"""Activations that a Gemma 1 may name. Early configs name plain GELU, but the weights were trained with the
tanh approximation."""


@dataclass(frozen=True)
class Family:
    """How to read one `model_type`.

    Attributes:
        configure: makes the configuration of the entries.
        names: its tensors' names.
        fixed: options with the only value that is computed.
        defaults: what an absent entry means, where that is not what other families mean.
        rotates_in_part: whether it may rotate a part of each head.
    """

    configure: Callable[[Entries], DecoderConfig]
    names: Names
    fixed: Mapping[str, object] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    rotates_in_part: bool = False


def family_of(raw: Raw) -> Family:
    """The family of a `config.json`.

    Raises:
        InputError: an unknown `model_type`, or an unsupported option.
    """
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        architectures = raw.get("architectures")
        named = architectures[0] if isinstance(architectures, list) and architectures else "the model"
        raise InputError(
            f"{named} is of a family that is not built here: unknown model_type {kind!r} in config.json; "
            f"supported: {', '.join(sorted(FAMILIES))}"
        )
    family = FAMILIES[kind]
    for name, value in {**_FIXED, **family.fixed}.items():
        if raw.get(name, value) not in (value, None):
            raise InputError(f"{kind} with {name}={raw[name]!r} is not supported; only {value!r} is")
    return family


def config_of(raw: Raw, part_of: str = "") -> DecoderConfig:
    """The `DecoderConfig` of a `config.json`; errors as in `family_of`, or for a missing or wrong entry.

    Entries that no class knows are ignored with a warning, or refused for a decoder that is `part_of`
    something else.
    """
    family, kind = family_of(raw), raw["model_type"]
    entries = Entries({**family.defaults, **raw})
    entries.pass_over(*_FIXED, *family.fixed)
    try:
        config = family.configure(entries)
    except KeyError as missing:
        raise InputError(f"config.json of {kind} lacks {missing}") from missing
    _require_layer_types(kind, entries.get("layer_types"), config)
    if config.window is None and any(config.sliding):
        raise InputError(f"{kind} with sliding layers and sliding_window=None is not supported")
    if part_of:
        entries.refuse_unread(part_of)
    entries.warn_of_unread(kind)
    if config.heads % config.kv_heads:
        raise InputError(f"{kind} with {config.heads} heads for {config.kv_heads} of keys is not supported")
    for rope in filter(None, (config.rope, config.local_rope)):
        if rope.share != 1.0 and not family.rotates_in_part:
            raise InputError(f"{kind} with partial_rotary_factor={rope.share:g} is not supported; only 1 is")
        if rope.rotated(config.head_dim) % 2:
            raise InputError(
                f"{kind} with partial_rotary_factor={rope.share:g} would rotate "
                f"{rope.rotated(config.head_dim)} of {config.head_dim} dimensions, which are no pairs"
            )
        if rope.kind == "longrope" and len(rope.factors) != rope.rotated(config.head_dim) // 2:
            raise InputError(
                f"{kind} with rope type 'longrope' and {len(rope.factors)} factors is not supported; it "
                f"rotates {rope.rotated(config.head_dim) // 2} pairs"
            )
    return config


def _require_layer_types(kind: str, types: Any, config: DecoderConfig) -> None:
    """InputError unless `layer_types` says what is computed in each layer."""
    if types is None:
        return
    if len(types) != config.layers:
        raise InputError(f"{kind} with {len(types)} layer_types for {config.layers} layers is not supported")
    for layer, name in enumerate(types):
        computed = "sliding_attention" if config.is_sliding(layer) else "full_attention"
        if name != computed:
            raise InputError(
                f"{kind} with layer_types {name!r} for layer {layer} and "
                f"sliding_window={config.window} is not supported; it computes {computed!r} there"
            )


def _shape(raw: Entries) -> dict[str, Any]:
    """Fields with the same names in most families."""
    hidden, heads = raw["hidden_size"], raw["num_attention_heads"]
    head_dim = raw.get("head_dim") or hidden // heads
    if raw.get("head_dim") is None and hidden % heads:
        raise InputError(f"config.json has hidden_size={hidden}, which {heads} heads do not divide")
    return {
        "vocab": raw["vocab_size"],
        "hidden": hidden,
        "layers": raw["num_hidden_layers"],
        "heads": heads,
        "kv_heads": raw.get("num_key_value_heads") or heads,
        "head_dim": head_dim,
        "query_scale": head_dim**-0.5,
        "max_positions": raw["max_position_embeddings"],
        "shares_embeddings": bool(raw.get("shares_embeddings", False)),
    }


def _gated(raw: Entries, **more: Any) -> DecoderConfig:
    """Llama-like decoders: gated MLP and RMSNorm."""
    settings = _shape(raw) | {
        "intermediate": raw["intermediate_size"],
        "norm_eps": raw.get("rms_norm_eps", 1e-6),
        "activation": choice(_ACTIVATIONS, "activation", raw.get("hidden_act", "silu")),
        "tied": raw.get("tie_word_embeddings", False),
    }
    return DecoderConfig(**(settings | ({} if "rope" in more else {"rope": read_rope(raw)}) | more))


def _layer_types(raw: Entries, fallback: Callable[[int], bool]) -> tuple[bool, ...]:
    """Which layers use a sliding window: from `layer_types`, or by the family's older rule."""
    types = raw.get("layer_types")
    if types is not None:
        return tuple(kind == "sliding_attention" for kind in types)
    return tuple(fallback(i) for i in range(raw["num_hidden_layers"]))


def _llama(raw: Entries) -> DecoderConfig:
    bias = raw.get("attention_bias", False)
    return _gated(raw, qkv_bias=bias, out_bias=bias, mlp_bias=raw.get("mlp_bias", False))


def _mistral(raw: Entries) -> DecoderConfig:
    window = raw.get("sliding_window", 4096)
    return _gated(raw, window=window, sliding=(window is not None,) * raw["num_hidden_layers"])


def _qwen_window(raw: Entries) -> dict[str, Any]:
    raw.pass_over("sliding_window", "max_window_layers")
    if not raw.get("use_sliding_window", False):
        return {}
    first = raw.get("max_window_layers", 28)
    window = raw.get("sliding_window", 4096)
    return {"window": window, "sliding": _layer_types(raw, lambda i: i >= first)}


def _qwen2(raw: Entries) -> DecoderConfig:
    return _gated(raw, qkv_bias=True, **_qwen_window(raw))


def _qwen3(raw: Entries) -> DecoderConfig:
    bias = raw.get("attention_bias", False)
    return _gated(raw, qkv_bias=bias, out_bias=bias, qk_norm=True, **_qwen_window(raw))


def _gemma(raw: Entries, **more: Any) -> DecoderConfig:
    bias = raw.get("attention_bias", False)
    if "activation" not in more:
        choice(dict.fromkeys(_GEMMA_1), "activation", raw.get("hidden_act") or _GEMMA_1[0])
    settings = {
        "norm_offset": 1.0,
        "activation": "gelu_tanh",
        "qkv_bias": bias,
        "out_bias": bias,
        "embedding_scale": raw["hidden_size"] ** 0.5,
        "tied": raw.get("tie_word_embeddings", True),
    }
    return _gated(raw, **(settings | more))


def _gemma2(raw: Entries, **more: Any) -> DecoderConfig:
    settings = {
        "block": "sandwich",
        "activation": choice(_ACTIVATIONS, "activation", raw.get("hidden_activation", "gelu_pytorch_tanh")),
        "query_scale": raw.get("query_pre_attn_scalar", 256) ** -0.5,
        "window": raw.get("sliding_window", 4096),
        "sliding": _layer_types(raw, lambda i: i % 2 == 0),
        "attention_cap": raw.get("attn_logit_softcapping", 50.0),
        "logit_cap": raw.get("final_logit_softcapping", 30.0),
    }
    return _gemma(raw, **(settings | more))


def _gemma3(raw: Entries) -> DecoderConfig:
    # The reference implementation has the field from Gemma 2 and does not apply it.
    if (cap := raw.get("attn_logit_softcapping")) is not None:
        raise InputError(f"gemma3 with attn_logit_softcapping={cap!r} is not supported; only null is")
    pattern = raw.get("sliding_window_pattern") or 6
    return _gemma2(
        raw,
        qk_norm=True,
        sliding=_layer_types(raw, lambda i: (i + 1) % pattern != 0),
        attention_cap=None,
        logit_cap=raw.get("final_logit_softcapping"),
        **_gemma3_ropes(raw),
    )


def _gemma3_ropes(raw: Entries) -> dict[str, Rope]:
    """RoPE of full and of sliding layers: `rope_scaling` is added to the former, which have another theta."""
    both, scaling = raw.get("rope_parameters") or {}, raw.get("rope_scaling") or {}
    if "type" in scaling and "rope_type" not in scaling:
        raise InputError("gemma3 with type in rope_scaling is not supported: transformers reads rope_type")
    theta, local = raw.get("rope_theta") or 1_000_000.0, raw.get("rope_local_base_freq") or 10_000.0
    full = rope_of(raw, {**(both.get("full_attention") or {}), **scaling}, theta)
    return {"rope": full, "local_rope": rope_of(raw, both.get("sliding_attention") or {}, local)}


def _gemma3_multimodal(raw: Entries) -> DecoderConfig:
    """The text model of a multimodal checkpoint, whose config omits defaults of the 4B model."""
    text = Entries({**_GEMMA3_DEFAULTS, **raw["text_config"]})
    text.pass_over("tie_word_embeddings", *_CAUSAL)
    for name, value in {**_FIXED, **_CAUSAL}.items():
        if raw["text_config"].get(name) not in (value, None):
            raise InputError(f"gemma3 with {name}={raw['text_config'][name]!r} is not supported")
    config = replace(_gemma3(text), tied=raw.get("tie_word_embeddings", True))
    _require_layer_types("gemma3", text.get("layer_types"), config)
    text.warn_of_unread("gemma3's text_config")
    return config


def _phi(raw: Entries) -> DecoderConfig:
    return DecoderConfig(
        **_shape(raw),
        intermediate=raw["intermediate_size"],
        norm="layer",
        norm_eps=raw.get("layer_norm_eps", 1e-5),
        block="parallel",
        activation=choice(_ACTIVATIONS, "activation", raw.get("hidden_act", "gelu_new")),
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        head_bias=True,
        rope=read_rope(raw, share=0.5),
        tied=raw.get("tie_word_embeddings", False),
    )


def _opt(raw: Entries) -> DecoderConfig:
    bias, before = raw.get("enable_bias", True), raw.get("do_layer_norm_before", True)
    has_final_norm = not raw.get("_remove_final_layer_norm", False)
    return DecoderConfig(
        **_shape(raw),
        intermediate=raw["ffn_dim"],
        norm="layer",
        norm_eps=1e-5,
        final_norm=before and has_final_norm,
        block="pre" if before else "post",
        activation=choice(_ACTIVATIONS, "activation", raw.get("activation_function", "relu")),
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        learned_positions=raw["max_position_embeddings"] + 2,
        position_offset=2,
        embedding_width=raw.get("word_embed_proj_dim") or raw["hidden_size"],
        tied=raw.get("tie_word_embeddings", True),
    )


_GPT2_NAMES = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
}
"""GPT-2's names of common entries; transformers reads both."""


def _gpt2(raw: Entries) -> DecoderConfig:
    for common, name in _GPT2_NAMES.items():
        if raw.get(common, raw.get(name)) != raw.get(name, raw.get(common)):
            raise InputError(f"config.json of gpt2 has {common}={raw[common]} and {name}={raw[name]}")
    renamed = Entries(
        {common: raw[name] if name in raw else raw[common] for common, name in _GPT2_NAMES.items()}
    )
    width, positions = renamed["hidden_size"], renamed["max_position_embeddings"]
    return DecoderConfig(
        **_shape(Entries({**renamed, "vocab_size": raw["vocab_size"]})),
        intermediate=raw.get("n_inner") or 4 * width,
        norm="layer",
        norm_eps=raw.get("layer_norm_epsilon", 1e-5),
        activation=choice(_ACTIVATIONS, "activation", raw.get("activation_function", "gelu_new")),
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        learned_positions=positions,
        tied=raw.get("tie_word_embeddings", True),
    )


_FIXED: Mapping[str, object] = {"per_layer_config": None}
"""Options of every family with the only value that is computed."""

_CAUSAL = {"use_bidirectional_attention": False}
_GEMMA2_DEFAULTS = {"num_key_value_heads": 4, "head_dim": 256}
_GEMMA3_DEFAULTS = _GEMMA2_DEFAULTS | {
    "num_attention_heads": 8,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
}

FAMILIES: dict[str, Family] = {
    "llama": Family(_llama, LLAMA_NAMES),
    "mistral": Family(_mistral, LLAMA_NAMES, defaults={"num_key_value_heads": 8}),
    "qwen2": Family(_qwen2, LLAMA_NAMES, defaults={"num_key_value_heads": 32}),
    "qwen3": Family(_qwen3, QWEN3_NAMES, defaults={"num_key_value_heads": 32, "head_dim": 128}),
    "gemma": Family(_gemma, LLAMA_NAMES, _CAUSAL, {"num_key_value_heads": 16, "head_dim": 256}),
    "gemma2": Family(_gemma2, GEMMA2_NAMES, _CAUSAL, _GEMMA2_DEFAULTS),
    "gemma3_text": Family(_gemma3, GEMMA3_NAMES, _CAUSAL, _GEMMA3_DEFAULTS),
    "gemma3": Family(_gemma3_multimodal, GEMMA3_MULTIMODAL_NAMES),
    "phi": Family(_phi, PHI_NAMES, {"qk_layernorm": False}, rotates_in_part=True),
    "opt": Family(_opt, OPT_NAMES, {"layer_norm_elementwise_affine": True}),
    "gpt2": Family(
        _gpt2,
        GPT2_NAMES,
        {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    ),
}
