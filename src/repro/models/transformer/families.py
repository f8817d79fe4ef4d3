"""The configuration of a decoder, from transformers' reading of its `config.json`, and its tensors' names.

Owns which families are computed, which of their settings, and how checkpoints of each name their tensors. A
setting of transformers' class that is not read here must have its default (`config_settings`). Must not read
files or create tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.core.errors import InputError
from repro.core.registry import require_choice
from repro.models.checkpoints.config_settings import Settings, read_settings
from repro.models.transformer.config import Activation, DecoderConfig, Rope, RopeKind


@dataclass(frozen=True)
class Names:
    """Tensor names of a family; `prefixes` are tried in order, `layer` is formatted with the layer index.

    `parts` maps our part names (`q`, `out`, `before_mlp`, ...) to names within a layer; `qkv` is a fused one.
    """

    parts: Mapping[str, str]
    prefixes: tuple[str, ...] = ("model.", "")
    layer: str = "layers.{}."
    embedding: str = "embed_tokens"
    final_norm: str = "norm"
    positions: str = ""
    project_in: str = ""
    project_out: str = ""
    head: str = "lm_head"
    transposed: bool = False  # linears stored as [inputs, outputs]


_ATTENTION = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "out": "self_attn.o_proj",
}
_GATED_MLP = {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
_QK_NORMS = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
_LLAMA_PARTS = {
    **_ATTENTION,
    **_GATED_MLP,
    "before_attention": "input_layernorm",
    "before_mlp": "post_attention_layernorm",
}
_SANDWICH_PARTS = {
    **_LLAMA_PARTS,
    "after_attention": "post_attention_layernorm",
    "before_mlp": "pre_feedforward_layernorm",
    "after_mlp": "post_feedforward_layernorm",
}
LLAMA_NAMES = Names(_LLAMA_PARTS)
PHI_NAMES = Names(
    {
        **_ATTENTION,
        "out": "self_attn.dense",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
        "before_attention": "input_layernorm",
    },
    final_norm="final_layernorm",
)
# OPT's norms have the same names before and after attention and MLP: `do_layer_norm_before` tells which.
OPT_NAMES = Names(
    {
        **_ATTENTION,
        "out": "self_attn.out_proj",
        "up": "fc1",
        "down": "fc2",
        "before_attention": "self_attn_layer_norm",
        "after_attention": "self_attn_layer_norm",
        "before_mlp": "final_layer_norm",
        "after_mlp": "final_layer_norm",
    },
    prefixes=("model.decoder.", "decoder.", ""),
    final_norm="final_layer_norm",
    positions="embed_positions",
    project_in="project_in",
    project_out="project_out",
)
GPT2_NAMES = Names(
    {
        "qkv": "attn.c_attn",
        "out": "attn.c_proj",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
        "before_attention": "ln_1",
        "before_mlp": "ln_2",
    },
    prefixes=("transformer.", ""),
    layer="h.{}.",
    embedding="wte",
    final_norm="ln_f",
    positions="wpe",
    transposed=True,
)
QWEN3_NAMES = Names({**_LLAMA_PARTS, **_QK_NORMS})
GEMMA2_NAMES = Names(_SANDWICH_PARTS)
GEMMA3_NAMES = Names({**_SANDWICH_PARTS, **_QK_NORMS})
GEMMA3_MULTIMODAL_NAMES = Names(
    GEMMA3_NAMES.parts, prefixes=("model.language_model.", "language_model.model.")
)


ConfigJson = Mapping[str, Any]

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_ROPES: dict[RopeKind, Mapping[str, str]] = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_frequency_factor": "low_freq_factor",
        "high_frequency_factor": "high_freq_factor",
        "original_positions": "original_max_position_embeddings",
    },
    "longrope": {},
}
"""The numbers of each rope type: our field, and its name in `rope_parameters`."""


@dataclass(frozen=True)
class Family:
    """How to read one `model_type`.

    Attributes:
        options: makes the fields of the configuration of the settings; ropes as `rope_parameters`.
        names: its tensors' names.
        rotates_in_part: whether it may rotate a part of each head.
        multimodal: whether the decoder is described in `text_config`.
    """

    options: Callable[[Settings], dict[str, Any]]
    names: Names
    rotates_in_part: bool = False
    multimodal: bool = False


def family_of(config: ConfigJson) -> Family:
    """The family of a `config.json`; InputError for an unknown `model_type`."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        architectures = config.get("architectures")
        name = architectures[0] if isinstance(architectures, list) and architectures else "the model"
        raise InputError(
            f"{name} is of a family that is not built here: unknown model_type {kind!r} in config.json; "
            f"supported: {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[kind]


def config_of(config_json: ConfigJson, part_of: str = "") -> DecoderConfig:
    """The `DecoderConfig` of a `config.json`.

    Entries that no class knows are ignored with a warning, or refused for a decoder that is `part_of`
    something else.

    Raises:
        InputError: an unknown `model_type`, a missing or wrong entry, or a setting that is not computed.
    """
    family, settings = family_of(config_json), read_settings(config_json)
    if family.multimodal:  # its text model, tied as the whole says
        text, tie_word_embeddings = settings["text_config"], settings["tie_word_embeddings"]
        settings.require_computed()
        return config_of({**text, "tie_word_embeddings": tie_word_embeddings})
    kind, options = config_json["model_type"], family.options(settings)
    options |= {name: _rope(options[name]) for name in ("rope", "local_rope") if name in options}
    config = DecoderConfig(**options)
    _require_layer_types(kind, settings.get("layer_types") or (), config)
    settings.require_computed(part_of)
    if config.heads % config.kv_heads:
        raise InputError(f"{kind} with {config.heads} heads for {config.kv_heads} of keys is not supported")
    for rope in filter(None, (config.rope, config.local_rope)):
        _require_rotation(kind, rope, config.head_dim, family.rotates_in_part)
    return config


def _require_rotation(kind: str, rope: Rope, head_dim: int, in_part: bool) -> None:
    """InputError unless pairs of dimensions are rotated: all of a head's, or a part if that is computed."""
    rotated_dims = rope.rotated_dims(head_dim)
    if rope.share != 1.0 and not in_part:
        raise InputError(f"{kind} with partial_rotary_factor={rope.share:g} is not supported; only 1 is")
    if rotated_dims % 2:
        raise InputError(
            f"{kind} with partial_rotary_factor={rope.share:g} would rotate {rotated_dims} of {head_dim} "
            "dimensions, which are no pairs"
        )
    if rope.kind == "longrope" and len(rope.factors) != rotated_dims // 2:
        raise InputError(
            f"{kind} with rope type 'longrope' and {len(rope.factors)} factors is not supported; it rotates "
            f"{rotated_dims // 2} pairs"
        )


def _require_layer_types(kind: str, types: Sequence[str], config: DecoderConfig) -> None:
    """InputError unless `layer_types`, if there are any, say what is computed in each layer."""
    for layer, name in enumerate(types):
        computed_type = "sliding_attention" if config.is_sliding(layer) else "full_attention"
        if name != computed_type:
            raise InputError(
                f"{kind} with layer_types {name!r} for layer {layer} and "
                f"sliding_window={config.window} is not supported; it computes {computed_type!r} there"
            )


def _shape(settings: Settings) -> dict[str, Any]:
    """Fields of every family, under names that they share."""
    shares_embeddings = settings.get("shares_embeddings", False)
    if not isinstance(shares_embeddings, bool):
        raise InputError(f"config.json has shares_embeddings={shares_embeddings!r}; it must be true or false")
    return {
        "vocab": settings["vocab_size"],
        "hidden": settings["hidden_size"],
        "layers": settings["num_hidden_layers"],
        "heads": settings["num_attention_heads"],
        "max_positions": settings["max_position_embeddings"],
        "tied": settings["tie_word_embeddings"],
        "shares_embeddings": shares_embeddings,
    }


def _heads(dim: int, kv_head_count: int) -> dict[str, Any]:
    return {"head_dim": dim, "kv_heads": kv_head_count, "query_scale": dim**-0.5}


def _rotary(settings: Settings) -> dict[str, Any]:
    """Fields of a family with RoPE, whose heads may be fewer for keys and as wide as a setting says."""
    head_dim = settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]
    rope_fields = {"rope": settings["rope_parameters"], "intermediate": settings["intermediate_size"]}
    return _shape(settings) | _heads(head_dim, settings["num_key_value_heads"]) | rope_fields


def _positions(settings: Settings, reserved: int = 0) -> dict[str, Any]:
    """Fields of a family with a table of positions, whose first entries may be `reserved` for padding."""
    return {
        **_shape(settings),
        **_heads(settings["hidden_size"] // settings["num_attention_heads"], settings["num_attention_heads"]),
        "activation": _activation(settings["activation_function"]),
        "learned_positions": settings["max_position_embeddings"] + reserved,
        "position_offset": reserved,
    }


def _layer_norm(eps: float, bias: bool) -> dict[str, Any]:
    """LayerNorm, an MLP without a gate, and biases."""
    biases = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), bias)
    return {"norm": "layer", "norm_eps": eps, "gated": False, **biases}


def _activation(name: str) -> Activation:
    require_choice("activation", name, _ACTIVATIONS)
    return _ACTIVATIONS[name]


def _rope(parameters: ConfigJson) -> Rope:
    """RoPE of `rope_parameters`; InputError for what is not computed."""
    nested_names = [name for name, value in parameters.items() if isinstance(value, Mapping)]
    if nested_names:
        raise InputError(f"rope settings of their own for {nested_names[0]!r} are not supported")
    kind = parameters.get("rope_type")
    require_choice("rope type", kind, _ROPES)
    if parameters.get("type", kind) != kind:
        raise InputError(f"rope_type={kind!r} beside type={parameters['type']!r} is not supported")
    names = {"theta": "rope_theta", **_ROPES[kind]}
    if parameters.get("partial_rotary_factor") is not None:
        names["share"] = "partial_rotary_factor"
    numbers = {field: _number(name, parameters.get(name)) for field, name in names.items()}
    return Rope(kind=kind, factors=_factors(parameters) if kind == "longrope" else (), **numbers)


def _number(name: str, value: Any) -> Any:
    """A number of `rope_parameters`, a float unless it counts positions; InputError for another value."""
    if type(value) not in (int, float) or value <= 0:
        raise InputError(f"rope_parameters has {name}={value!r}; it must be a number above 0")
    return value if name == "original_max_position_embeddings" else float(value)


def _factors(parameters: ConfigJson) -> tuple[float, ...]:
    """The factor of each pair's frequency; InputError unless it is the same at every length."""
    short_factors, long_factors = parameters["short_factor"], parameters["long_factor"]
    if short_factors != long_factors or parameters.get("attention_factor") != 1.0:
        raise InputError(
            "rope type 'longrope' is supported only with equal short_factor and long_factor and an "
            "attention_factor of 1"
        )
    return tuple(_number("short_factor", value) for value in short_factors)


def _gated_mlp(settings: Settings, activation: str = "hidden_act") -> dict[str, Any]:
    """Fields of a family like Llama: gated MLP and RMSNorm."""
    return _rotary(settings) | {
        "norm_eps": settings["rms_norm_eps"],
        "activation": _activation(settings[activation]),
    }


def _attention_bias(settings: Settings) -> dict[str, Any]:
    return dict.fromkeys(("qkv_bias", "out_bias"), settings["attention_bias"])


def _sliding_window(settings: Settings) -> dict[str, Any]:
    """The sliding layers, as transformers' `layer_types` and `sliding_window` sum up other settings."""
    settings.pass_over("use_sliding_window", "max_window_layers")
    settings.pass_over("sliding_window_pattern", "_sliding_window_pattern")
    if (window := settings["sliding_window"]) is None:
        return {}
    return {
        "window": window,
        "sliding": tuple(kind == "sliding_attention" for kind in settings["layer_types"]),
    }


def _llama(settings: Settings) -> dict[str, Any]:
    return _gated_mlp(settings) | _attention_bias(settings) | {"mlp_bias": settings["mlp_bias"]}


def _mistral(settings: Settings) -> dict[str, Any]:
    window = settings["sliding_window"]
    return _gated_mlp(settings) | {
        "window": window,
        "sliding": (window is not None,) * settings["num_hidden_layers"],
    }


def _qwen2(settings: Settings) -> dict[str, Any]:
    return _gated_mlp(settings) | _sliding_window(settings) | {"qkv_bias": True}


def _qwen3(settings: Settings) -> dict[str, Any]:
    return _gated_mlp(settings) | _attention_bias(settings) | _sliding_window(settings) | {"qk_norm": True}


def _gemma(settings: Settings, activation: str = "hidden_act") -> dict[str, Any]:
    scale = settings["hidden_size"] ** 0.5
    return (
        _gated_mlp(settings, activation)
        | _attention_bias(settings)
        | {"norm_offset": 1.0, "embedding_scale": scale}
    )


def _sandwich(settings: Settings) -> dict[str, Any]:
    """Fields of Gemma 2 and 3."""
    return {
        **_gemma(settings, "hidden_activation"),
        **_sliding_window(settings),
        "block": "sandwich",
        "query_scale": settings["query_pre_attn_scalar"] ** -0.5,
        "logit_cap": settings["final_logit_softcapping"],
    }


def _gemma2(settings: Settings) -> dict[str, Any]:
    return _sandwich(settings) | {"attention_cap": settings["attn_logit_softcapping"]}


def _gemma3(settings: Settings) -> dict[str, Any]:
    # The reference implementation has the attention cap of Gemma 2 and does not apply it: only null is read.
    ropes = settings["rope_parameters"]
    of_both = {"rope": ropes["full_attention"], "local_rope": ropes["sliding_attention"]}
    return _sandwich(settings) | of_both | {"qk_norm": True}


def _phi(settings: Settings) -> dict[str, Any]:
    options = {"block": "parallel", "activation": _activation(settings["hidden_act"]), "head_bias": True}
    return _rotary(settings) | _layer_norm(settings["layer_norm_eps"], True) | options


def _opt(settings: Settings) -> dict[str, Any]:
    norm_before = settings["do_layer_norm_before"]
    return {
        **_positions(settings, reserved=2),
        **_layer_norm(1e-5, settings["enable_bias"]),
        "intermediate": settings["ffn_dim"],
        "final_norm": norm_before and not settings["_remove_final_layer_norm"],
        "block": "pre" if norm_before else "post",
        "embedding_width": settings["word_embed_proj_dim"],
    }


def _gpt2(settings: Settings) -> dict[str, Any]:
    width = settings["n_inner"] or 4 * settings["hidden_size"]
    return _positions(settings) | _layer_norm(settings["layer_norm_epsilon"], True) | {"intermediate": width}


FAMILIES: dict[str, Family] = {
    "llama": Family(_llama, LLAMA_NAMES),
    "mistral": Family(_mistral, LLAMA_NAMES),
    "qwen2": Family(_qwen2, LLAMA_NAMES),
    "qwen3": Family(_qwen3, QWEN3_NAMES),
    "gemma": Family(_gemma, LLAMA_NAMES),
    "gemma2": Family(_gemma2, GEMMA2_NAMES),
    "gemma3_text": Family(_gemma3, GEMMA3_NAMES),
    "gemma3": Family(_gemma3, GEMMA3_MULTIMODAL_NAMES, multimodal=True),
    "phi": Family(_phi, PHI_NAMES, rotates_in_part=True),
    "opt": Family(_opt, OPT_NAMES),
    "gpt2": Family(_gpt2, GPT2_NAMES),
}
