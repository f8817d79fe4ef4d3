"""Translation of Hugging Face configurations into `DecoderConfig`.

Owns one table entry per `model_type`. Must not read files or create tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from repro.core.errors import InputError
from repro.models.transformer.config import Activation, DecoderConfig, Rope, RopeKind
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

_ROPES: dict[str, RopeKind] = {"default": "default", "linear": "linear", "llama3": "llama3"}


NEEDED = (
    "hidden_size",
    "num_attention_heads",
    "vocab_size",
    "num_hidden_layers",
    "max_position_embeddings",
)
COUNTS = (*NEEDED, "num_key_value_heads", "head_dim", "intermediate_size")
"""Entries that are counts."""


@dataclass(frozen=True)
class Family:
    """How to read one `model_type`: its configuration, tensor names, options with a required value, and
    whether it may rotate a part of each head."""

    configure: Callable[[Raw], DecoderConfig]
    names: Names
    fixed: Mapping[str, object] = field(default_factory=dict)
    rotates_in_part: bool = False


def family_of(raw: Raw) -> Family:
    """The family of a `config.json`.

    Raises:
        InputError: an unknown `model_type`, or an unsupported option.
    """
    kind = raw.get("model_type")
    if kind not in FAMILIES:
        raise InputError(
            f"unknown model_type {kind!r} in config.json; supported: {', '.join(sorted(FAMILIES))}"
        )
    family = FAMILIES[kind]
    for name, value in family.fixed.items():
        if raw.get(name, value) not in (value, None):
            raise InputError(f"{kind} with {name}={raw[name]!r} is not supported; only {value!r} is")
    return family


def config_of(raw: Raw) -> DecoderConfig:
    """The `DecoderConfig` of a `config.json`; errors as in `family_of`, or for a missing key."""
    family, kind = family_of(raw), raw["model_type"]
    try:
        config = family.configure(raw)
    except KeyError as missing:
        raise InputError(f"config.json of {kind} lacks {missing}") from missing
    for rope in filter(None, (config.rope, config.local_rope)):
        if rope.share != 1.0 and not family.rotates_in_part:
            raise InputError(f"{kind} with partial_rotary_factor={rope.share:g} is not supported; only 1 is")
        if rope.rotated(config.head_dim) % 2:
            raise InputError(
                f"{kind} with partial_rotary_factor={rope.share:g} would rotate "
                f"{rope.rotated(config.head_dim)} of {config.head_dim} dimensions, which are no pairs"
            )
    return config


def _choice(table: Mapping[str, Any], what: str, name: str) -> Any:
    if name not in table:
        raise InputError(f"unsupported {what} {name!r}; supported: {', '.join(sorted(table))}")
    return table[name]


def _rope(raw: Raw, theta: float = 10_000.0, share: float = 1.0, nested: str = "") -> Rope:
    """RoPE settings from old configs (`rope_theta`, `rope_scaling`) and new ones (`rope_parameters`)."""
    new = raw.get("rope_parameters") or {}
    old = {key: raw[key] for key in ("rope_theta", "partial_rotary_factor") if raw.get(key) is not None}
    merged = old | (raw.get("rope_scaling") or {}) | (new.get(nested) or {} if nested in new else new)
    kind = _choice(_ROPES, "rope type", merged.get("rope_type") or merged.get("type") or "default")
    return Rope(
        theta=float(merged.get("rope_theta", theta)),
        share=float(merged.get("partial_rotary_factor", share)),
        kind=kind,
        factor=float(merged.get("factor", 1.0)),
        low_frequency_factor=float(merged.get("low_freq_factor", 1.0)),
        high_frequency_factor=float(merged.get("high_freq_factor", 4.0)),
        original_positions=int(
            merged.get("original_max_position_embeddings") or raw.get("max_position_embeddings", 8192)
        ),
    )


def _shape(raw: Raw) -> dict[str, Any]:
    """Fields with the same names in most families."""
    for name in COUNTS:
        if raw.get(name) is not None or name in NEEDED:
            count = raw[name]
            if type(count) is not int or count < 1:
                raise InputError(f"config.json has {name}={count!r}; it must be a whole number of at least 1")
    hidden, heads = raw["hidden_size"], raw["num_attention_heads"]
    head_dim = raw.get("head_dim") or hidden // heads
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


def _gated(raw: Raw, **more: Any) -> DecoderConfig:
    """Llama-like decoders: gated MLP and RMSNorm."""
    settings = _shape(raw) | {
        "intermediate": raw["intermediate_size"],
        "norm_eps": raw.get("rms_norm_eps", 1e-6),
        "activation": _choice(_ACTIVATIONS, "activation", raw.get("hidden_act", "silu")),
        "tied": raw.get("tie_word_embeddings", False),
        "rope": _rope(raw),
    }
    return DecoderConfig(**(settings | more))


def _layer_types(raw: Raw, fallback: Callable[[int], bool]) -> tuple[bool, ...]:
    """Which layers use a sliding window: from `layer_types`, or by the family's older rule."""
    types = raw.get("layer_types")
    if types is not None:
        return tuple(kind == "sliding_attention" for kind in types)
    return tuple(fallback(i) for i in range(raw["num_hidden_layers"]))


def _llama(raw: Raw) -> DecoderConfig:
    bias = raw.get("attention_bias", False)
    return _gated(raw, qkv_bias=bias, out_bias=bias, mlp_bias=raw.get("mlp_bias", False))


def _mistral(raw: Raw) -> DecoderConfig:
    return _gated(raw, window=raw.get("sliding_window"), sliding=(True,) * raw["num_hidden_layers"])


def _qwen_window(raw: Raw) -> dict[str, Any]:
    first = raw.get("max_window_layers", raw["num_hidden_layers"])
    used = raw.get("use_sliding_window", False)
    return {
        "window": raw.get("sliding_window") if used else None,
        "sliding": _layer_types(raw, lambda i: i >= first),
    }


def _qwen2(raw: Raw) -> DecoderConfig:
    return _gated(raw, qkv_bias=True, **_qwen_window(raw))


def _qwen3(raw: Raw) -> DecoderConfig:
    bias = raw.get("attention_bias", False)
    return _gated(raw, qkv_bias=bias, out_bias=bias, qk_norm=True, **_qwen_window(raw))


def _gemma(raw: Raw, **more: Any) -> DecoderConfig:
    bias = raw.get("attention_bias", False)
    if "activation" not in more:
        _choice(dict.fromkeys(_GEMMA_1), "activation", raw.get("hidden_act") or _GEMMA_1[0])
    settings = {
        "norm_offset": 1.0,
        "activation": "gelu_tanh",
        "qkv_bias": bias,
        "out_bias": bias,
        "embedding_scale": raw["hidden_size"] ** 0.5,
        "tied": raw.get("tie_word_embeddings", True),
    }
    return _gated(raw, **(settings | more))


def _gemma2(raw: Raw, **more: Any) -> DecoderConfig:
    settings = {
        "block": "sandwich",
        "activation": _choice(_ACTIVATIONS, "activation", raw.get("hidden_activation", "gelu_pytorch_tanh")),
        "query_scale": raw.get("query_pre_attn_scalar", 256) ** -0.5,
        "window": raw.get("sliding_window", 4096),
        "sliding": _layer_types(raw, lambda i: i % 2 == 0),
        "attention_cap": raw.get("attn_logit_softcapping", 50.0),
        "logit_cap": raw.get("final_logit_softcapping", 30.0),
    }
    return _gemma(raw, **(settings | more))


def _gemma3(raw: Raw) -> DecoderConfig:
    # The reference implementation has the field from Gemma 2 and does not apply it.
    if (cap := raw.get("attn_logit_softcapping")) is not None:
        raise InputError(f"gemma3 with attn_logit_softcapping={cap!r} is not supported; only null is")
    pattern = raw.get("sliding_window_pattern") or 6
    local = {"rope_theta": raw.get("rope_local_base_freq", 10_000.0)}
    if "rope_parameters" in raw:
        local = raw["rope_parameters"]
    return _gemma2(
        raw,
        qk_norm=True,
        sliding=_layer_types(raw, lambda i: (i + 1) % pattern != 0),
        attention_cap=None,
        logit_cap=raw.get("final_logit_softcapping"),
        rope=_rope(raw, theta=1_000_000.0, nested="full_attention"),
        local_rope=_rope({"rope_parameters": local}, nested="sliding_attention"),
    )


def _gemma3_multimodal(raw: Raw) -> DecoderConfig:
    """The text model of a multimodal checkpoint, whose config omits defaults of the 4B model."""
    defaults = {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
    }
    return _gemma3(defaults | dict(raw["text_config"]))


def _phi(raw: Raw) -> DecoderConfig:
    return DecoderConfig(
        **_shape(raw),
        intermediate=raw["intermediate_size"],
        norm="layer",
        norm_eps=raw.get("layer_norm_eps", 1e-5),
        block="parallel",
        activation=_choice(_ACTIVATIONS, "activation", raw.get("hidden_act", "gelu_new")),
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        head_bias=True,
        rope=_rope(raw, share=0.5),
        tied=raw.get("tie_word_embeddings", False),
    )


def _opt(raw: Raw) -> DecoderConfig:
    bias, before = raw.get("enable_bias", True), raw.get("do_layer_norm_before", True)
    return DecoderConfig(
        **_shape(raw),
        intermediate=raw["ffn_dim"],
        norm="layer",
        norm_eps=1e-5,
        final_norm=before and not raw.get("_remove_final_layer_norm", False),
        block="pre" if before else "post",
        activation=_choice(_ACTIVATIONS, "activation", raw.get("activation_function", "relu")),
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        learned_positions=raw["max_position_embeddings"] + 2,
        position_offset=2,
        embedding_width=raw.get("word_embed_proj_dim") or raw["hidden_size"],
        tied=raw.get("tie_word_embeddings", True),
    )


def _gpt2(raw: Raw) -> DecoderConfig:
    renamed = {
        "hidden_size": raw["n_embd"],
        "num_attention_heads": raw["n_head"],
        "num_hidden_layers": raw["n_layer"],
        "max_position_embeddings": raw["n_positions"],
    }
    return DecoderConfig(
        **_shape({**raw, **renamed}),
        intermediate=raw.get("n_inner") or 4 * raw["n_embd"],
        norm="layer",
        norm_eps=raw.get("layer_norm_epsilon", 1e-5),
        activation=_choice(_ACTIVATIONS, "activation", raw.get("activation_function", "gelu_new")),
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        learned_positions=raw["n_positions"],
        tied=raw.get("tie_word_embeddings", True),
    )


_CAUSAL = {"use_bidirectional_attention": False}

FAMILIES: dict[str, Family] = {
    "llama": Family(_llama, LLAMA_NAMES),
    "mistral": Family(_mistral, LLAMA_NAMES),
    "qwen2": Family(_qwen2, LLAMA_NAMES),
    "qwen3": Family(_qwen3, QWEN3_NAMES),
    "gemma": Family(_gemma, LLAMA_NAMES, _CAUSAL),
    "gemma2": Family(_gemma2, GEMMA2_NAMES, _CAUSAL),
    "gemma3_text": Family(_gemma3, GEMMA3_NAMES, _CAUSAL),
    "gemma3": Family(_gemma3_multimodal, GEMMA3_MULTIMODAL_NAMES),
    "phi": Family(_phi, PHI_NAMES, {"qk_layernorm": False}, rotates_in_part=True),
    "opt": Family(_opt, OPT_NAMES, {"layer_norm_elementwise_affine": True}),
    "gpt2": Family(
        _gpt2,
        GPT2_NAMES,
        {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    ),
}
