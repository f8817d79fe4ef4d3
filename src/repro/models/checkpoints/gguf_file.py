"""A GGUF file converted to safetensors through `transformers`, with what its reader drops.

Owns which architectures and which settings of a GGUF file are read; a setting that is not is refused by name
before a weight is dequantized. Must not know where the file comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.core.errors import InputError

if TYPE_CHECKING:
    from gguf import GGUFReader

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3")
"""Architectures whose converted weights give the logits of the model that the file was made of."""

FREQUENCIES = "rope_freqs.weight"
"""The tensor of factors that llama.cpp divides RoPE's frequencies by: Llama 3.1 and later have it."""

SETTINGS = {
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "rope.dimension_count": "head_dim",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
"""Settings that transformers' reader drops for some architectures, with their place in its configuration."""

ONLY: Mapping[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "rope.scaling.type": ("none", "linear"),
    "rope.freq_base_swa": (10_000.0,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "tensor_data_layout": ("Meta AI original pth",),
}
"""Settings with the only values that are computed."""

HARMLESS = ("rope.scaling.finetuned", "rope.scaling.original_context_length", "rope.scaling.attn_factor")
SCALES = ("rope.scaling.factor", "rope.scale_linear")
"""Names of the factor of linear scaling, the present one first."""


def convert(path: Path, folder: Path, store: str) -> None:
    """Dequantize a GGUF file and save weights, configuration and tokenizer in a folder.

    `float32` stores exactly what `gguf` dequantizes to. `bfloat16` rounds it to 8 significant bits, an error
    below that of 4-bit quantization.

    Raises:
        InputError: the file is damaged, or has an architecture or a setting that is not read.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    with path.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise InputError(f"{path} is not a GGUF file")
    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    reader = _read(path, lambda: _reader(path))
    kind, settings = _settings(path, reader)
    config = _read(path, lambda: AutoConfig.from_pretrained(**source))
    _adjust(path, config, kind, settings, _frequency_factors(path, kind, reader))
    tokens = _read(path, lambda: AutoTokenizer.from_pretrained(**source))
    dtype = getattr(torch, store)
    model = _read(path, lambda: AutoModelForCausalLM.from_pretrained(**source, config=config, dtype=dtype))
    # The weights are plain tensors now, but `save_pretrained` refuses a model marked as quantized.
    model.hf_quantizer.remove_quantization_config(model)
    _split_as_trained(tokens, reader)
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)


def _reader(path: Path) -> GGUFReader:
    from gguf import GGUFReader

    return GGUFReader(path)


def _read(path: Path, part: Callable[[], Any]) -> Any:
    """What a library reads of the file; InputError for whatever it raises about it."""
    try:
        return part()
    except Exception as error:  # they raise many kinds: of values, keys, shapes, attributes
        why = " ".join(str(error).split())
        raise InputError(
            f"{path} is cut, or of a kind that cannot be converted: {type(error).__name__}: {why}"
        ) from error


def _settings(path: Path, reader: GGUFReader) -> tuple[str, dict[str, Any]]:
    """The architecture and its settings by name; InputError if one is not read."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    def contents() -> dict[str, Any]:
        others = ("general.", "tokenizer.", "GGUF.")
        names = [name for name in reader.fields if not name.startswith(others)]
        return {name: reader.fields[name].contents() for name in ("general.architecture", *names)}

    fields = _read(path, contents)
    kind = fields.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise InputError(
            f"{path} has architecture {kind!r}, which is not converted here; "
            f"choices: {', '.join(ARCHITECTURES)}"
        )
    settings = {name[len(kind) + 1 :]: v for name, v in fields.items() if name.startswith(f"{kind}.")}
    known = {*GGUF_CONFIG_MAPPING[kind], *SETTINGS, *ONLY, *HARMLESS, *SCALES}
    for name, value in settings.items():
        if name not in known or value not in ONLY.get(name, (value,)):
            raise InputError(f"{path} has {kind}.{name}={value!r}, which is not read here")
    return kind, settings


def _frequency_factors(path: Path, kind: str, reader: GGUFReader) -> list[float]:
    """The factors of RoPE's frequencies, one for each pair; empty if there are none."""
    for tensor in reader.tensors:
        if tensor.name == FREQUENCIES and kind == "llama":
            return [float(factor) for factor in tensor.data.reshape(-1)]
        if tensor.name.startswith("rope_f"):
            raise InputError(f"{path} has {tensor.name}, which is not read here for {kind}")
    return []


def _adjust(path: Path, config: Any, kind: str, settings: Mapping[str, Any], factors: list[float]) -> None:
    """Put into the configuration what transformers' reader drops; InputError for what contradicts itself."""
    heads = [settings[name] for name, place in SETTINGS.items() if place == "head_dim" and name in settings]
    if len(set(heads)) > 1:
        raise InputError(f"{path} has heads of {' and '.join(map(str, sorted(set(heads))))} for one layer")
    for name, place in SETTINGS.items():
        if name in settings:
            setattr(config, place, settings[name])
    scale = next((float(settings[name]) for name in SCALES if settings.get(name)), 1.0)
    if settings.get("rope.scaling.type") == "none":  # llama.cpp takes a factor without a type as linear
        scale = 1.0
    rope = dict(config.rope_parameters)
    if factors and (scale != 1.0 or any(factor != 1.0 for factor in factors)):
        each = [factor * scale for factor in factors]
        rope |= {"rope_type": "longrope", "short_factor": each, "long_factor": each, "attention_factor": 1.0}
        rope |= {"factor": 1.0, "original_max_position_embeddings": config.max_position_embeddings}
    elif scale != 1.0:
        linear = {"rope_type": "linear", "factor": scale}
        rope |= {"full_attention": rope["full_attention"] | linear} if kind == "gemma3" else linear
    config.rope_parameters = rope


def _split_as_trained(tokens: Any, reader: GGUFReader) -> None:
    """Split digits individually if the vocabulary was trained that way.

    `transformers` 5.23 does not support the pre-tokenizer that llama.cpp calls `smollm`: without this fix, a
    digit after several spaces would be merged with the last space.
    """
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    kind = reader.fields.get("tokenizer.ggml.pre")
    if kind is not None and kind.contents() == "smollm":
        steps = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
        tokens.backend_tokenizer.pre_tokenizer = Sequence(steps)
