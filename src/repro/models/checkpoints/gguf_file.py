"""A GGUF file converted to safetensors through `transformers`, with what its reader drops.

Owns which architectures, tensors, settings and tokenizers of a GGUF file are read; what is not is refused by
name before a weight is dequantized. Must not know where the file comes from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.core.errors import InputError

if TYPE_CHECKING:
    from gguf import GGUFReader

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3")
"""Architectures whose converted weights give the logits of the model that the file was made of."""

FREQUENCY_TENSOR = "rope_freqs.weight"
"""The tensor of factors that llama.cpp divides RoPE's frequencies by: Llama 3.1 and later have it."""

FIELDS = {
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "rope.dimension_count": "head_dim",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
"""Settings that transformers' reader drops for some architectures, with their place in its configuration."""

ONLY_VALUES: Mapping[str, tuple[Any, ...]] = {
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

HARMLESS_KEYS = ("rope.scaling.finetuned", "rope.scaling.original_context_length", "rope.scaling.attn_factor")
SCALE_KEYS = ("rope.scaling.factor", "rope.scale_linear")
"""Names of the factor of linear scaling, the present one first."""

AS_TRANSFORMERS = (
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "dbrx", "smaug-bpe", "llama4", "gpt-4o"),
    *("tekken", "qwen2", "qwen35", "deepseek-r1-qwen", "megrez", "gpt-2"),
)
"""Types of `tokenizer.ggml.pre` that transformers' reader cuts as their vocabularies were trained."""

DIGIT_BY_DIGIT = ("smollm", "starcoder", "refact")
"""Types that are cut as GPT-2's, with each digit alone."""

WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken")
"""Types that take a word of the vocabulary whole, whatever its merges, and begin with BOS by default."""

TOKENIZER_VALUES: Mapping[str, tuple[Any, ...] | None] = {
    "ggml.model": ("gpt2", "llama"),
    **dict.fromkeys(f"ggml.{name}" for name in ("pre", "tokens", "scores", "token_type", "merges")),
    **dict.fromkeys(f"ggml.{name}_token_id" for name in ("bos", "eos", "eot", "eom", "unknown", "padding")),
    **dict.fromkeys(f"ggml.{name}_token_id" for name in ("cls", "mask", "seperator", "separator")),
    **dict.fromkeys(f"ggml.fim_{name}_token_id" for name in ("pre", "suf", "mid", "pad", "rep", "sep")),
    **dict.fromkeys(f"ggml.{name}_token_id" for name in ("prefix", "suffix", "middle")),
    **dict.fromkeys(f"ggml.add_{name}" for name in ("bos_token", "eos_token", "space_prefix")),
    "ggml.add_sep_token": (False,),
    "ggml.remove_extra_whitespaces": (False,),
    "chat_template": None,
    "chat_templates": None,
}
"""Settings of a tokenizer that are read or, as names of further tokens, change nothing; with the only values
that are read, or None for all."""

END_KEYS = ("ggml.eos_token_id", "ggml.eot_token_id", "ggml.eom_token_id")
"""Tokens that end a text, a turn and a message: each ends an answer."""

CONTROL, USER_DEFINED = 3, 4
"""Types of tokens that a text is searched for before it is cut."""


def convert(path: Path, folder: Path, store: str) -> None:
    """Dequantize a GGUF file and save weights, configuration and tokenizer in a folder.

    `float32` stores exactly what `gguf` dequantizes to. `bfloat16` rounds it to 8 significant bits, an error
    below that of 4-bit quantization.

    Raises:
        InputError: the file is damaged or one part of several; it has an architecture, a setting, a tensor or
            a tokenizer that is not read; or it lacks a tensor of the model.
    """
    import torch
    from gguf import GGUFReader
    from transformers import AutoConfig, AutoModelForCausalLM

    with path.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise InputError(f"{path} is not a GGUF file")
    gguf = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    reader = _read(path, lambda: GGUFReader(path))
    kind, settings = _settings(path, reader)
    config = _read(path, lambda: AutoConfig.from_pretrained(**gguf))
    _adjust(path, config, kind, settings, _frequency_factors(path, kind, reader))
    _require_tensors(path, kind, config, reader)
    flags = _tokenizer_flags(path, kind, reader)
    tokens = _tokenizer(path, kind, reader, flags)
    dtype = getattr(torch, store)
    model = _read(path, lambda: AutoModelForCausalLM.from_pretrained(**gguf, config=config, dtype=dtype))
    # The weights are plain tensors now, but `save_pretrained` refuses a model marked as quantized.
    model.hf_quantizer.remove_quantization_config(model)
    ends = list(dict.fromkeys(flags[name] for name in END_KEYS if name in flags))
    if len(ends) > 1:
        model.generation_config.eos_token_id = ends
    model.save_pretrained(folder)
    _save_tokenizer(path, tokens, folder, reader, flags)


def _read(path: Path, read_part: Callable[[], Any]) -> Any:
    """What a library reads of the file; InputError for whatever it raises about it."""
    try:
        return read_part()
    except Exception as error:  # they raise many kinds: of values, keys, shapes, attributes
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path} is cut, or of a kind that cannot be converted: {type(error).__name__}: {reason}"
        ) from error


def _settings(path: Path, reader: GGUFReader) -> tuple[str, dict[str, Any]]:
    """The architecture and its settings by name; InputError if one is not read."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    def contents() -> dict[str, Any]:
        other_sections = ("general.", "tokenizer.", "GGUF.")
        names = [name for name in reader.fields if not name.startswith(other_sections)]
        general_names = [name for name in ("general.architecture", "general.type") if name in reader.fields]
        return {name: reader.fields[name].contents() for name in (*general_names, *names)}

    fields = _read(path, contents)
    if (file_count := fields.get("split.count", 1)) > 1:
        raise InputError(
            f"{path} is part {fields.get('split.no', 0) + 1} of {file_count} of one GGUF file, which are not "
            "read apart: merge them (llama-gguf-split --merge FIRST_PART OUT.gguf) and name the whole file"
        )
    if (content := fields.get("general.type", "model")) != "model":
        raise InputError(f"{path} holds no model, but general.type={content!r}, which is not read here")
    kind = fields.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise InputError(
            f"{path} has architecture {kind!r}, which is not converted here; "
            f"choices: {', '.join(ARCHITECTURES)}"
        )
    settings = {name[len(kind) + 1 :]: v for name, v in fields.items() if name.startswith(f"{kind}.")}
    supported = {*GGUF_CONFIG_MAPPING[kind], *FIELDS, *ONLY_VALUES, *HARMLESS_KEYS, *SCALE_KEYS}
    for name, value in settings.items():
        if name not in supported or value not in ONLY_VALUES.get(name, (value,)):
            raise InputError(f"{path} has {kind}.{name}={value!r}, which is not read here")
    return kind, settings


def _frequency_factors(path: Path, kind: str, reader: GGUFReader) -> list[float]:
    """The factors of RoPE's frequencies, one for each pair; empty if there are none."""
    for tensor in reader.tensors:
        if tensor.name == FREQUENCY_TENSOR and kind == "llama":
            return [float(factor) for factor in tensor.data.reshape(-1)]
        if tensor.name.startswith("rope_f"):
            raise InputError(f"{path} has {tensor.name}, which is not read here for {kind}")
    return []


def _adjust(path: Path, config: Any, kind: str, settings: Mapping[str, Any], factors: list[float]) -> None:
    """Put into the configuration what transformers' reader drops; InputError for what contradicts itself."""
    dims = [settings[name] for name, entry in FIELDS.items() if entry == "head_dim" and name in settings]
    if len(set(dims)) > 1:
        raise InputError(f"{path} has heads of {' and '.join(map(str, sorted(set(dims))))} for one layer")
    for name, entry in FIELDS.items():
        if name in settings:
            setattr(config, entry, settings[name])
    scale = next((float(settings[name]) for name in SCALE_KEYS if settings.get(name)), 1.0)
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


def _require_tensors(path: Path, kind: str, config: Any, reader: GGUFReader) -> None:
    """InputError unless the file has each tensor of the model, in its shape, and no other."""
    import torch
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
    from transformers import AutoModelForCausalLM

    architecture = next(number for number, name in MODEL_ARCH_NAMES.items() if name == kind)
    names = get_tensor_name_map(architecture, config.num_hidden_layers)
    with torch.device("meta"):
        weights = AutoModelForCausalLM.from_config(config).state_dict()
    if config.tie_word_embeddings:
        del weights["lm_head.weight"]
    shapes = {names.get_name(name, (".weight", ".bias")): tuple(w.shape) for name, w in weights.items()}
    in_file = {
        tensor.name: tuple(int(size) for size in reversed(tensor.shape))
        for tensor in reader.tensors
        if tensor.name != FREQUENCY_TENSOR
    }
    for names, fault in (
        ([name for name in shapes if name not in in_file], "lacks {}, which its model needs"),
        ([name for name in in_file if name not in shapes], f"has {{}}, which is not read here for {kind}"),
        ([name for name in shapes if in_file.get(name) != shapes[name]], "has another shape for {}"),
    ):
        if names:
            count_note = f" (and {len(names) - 1} more tensors)" if len(names) > 1 else ""
            raise InputError(f"{path} {fault.format(f'{names[0]}{count_note}')}")


def _tokenizer_flags(path: Path, kind: str, reader: GGUFReader) -> dict[str, Any]:
    """The tokenizer's settings by name, without arrays; InputError for one that is not read."""
    from gguf import GGUFValueType

    fields = {
        name[len("tokenizer.") :]: f for name, f in reader.fields.items() if name.startswith("tokenizer.")
    }
    for name in fields:
        if name not in TOKENIZER_VALUES and not name.startswith("chat_template."):
            raise InputError(f"{path} has tokenizer.{name}, which is not read here")
    flags = {
        name: _read(path, field.contents)
        for name, field in fields.items()
        if field.types[0] != GGUFValueType.ARRAY
    }
    for name, choices in TOKENIZER_VALUES.items():
        if choices is not None and flags.get(name, choices[0]) not in choices:
            raise InputError(f"{path} has tokenizer.{name}={flags[name]!r}, which is not read here")
    model, splitting = flags.get("ggml.model"), flags.get("ggml.pre")
    supported = (*AS_TRANSFORMERS, *DIGIT_BY_DIGIT) if model == "gpt2" else (None, "default")
    if splitting not in supported:
        raise InputError(
            f"{path} has tokenizer.ggml.pre={splitting!r}; how that cuts texts is not known here, only "
            f"{', '.join(map(str, supported))}"
        )
    if flags.get("ggml.add_space_prefix") and (model == "gpt2" or kind.startswith("gemma")):
        raise InputError(
            f"{path} has tokenizer.ggml.add_space_prefix=True, which is not read here for {kind}"
        )
    flags.setdefault("ggml.add_bos_token", model == "llama" or splitting in WHOLE_WORDS)
    needed_tokens = ("eos", "bos") if flags["ggml.add_bos_token"] else ("eos",)
    if missing_tokens := [name for name in needed_tokens if f"ggml.{name}_token_id" not in flags]:
        raise InputError(
            f"{path} does not say which token is {missing_tokens[0].upper()}: it has no "
            f"tokenizer.ggml.{missing_tokens[0]}_token_id"
        )
    return flags


def _tokenizer(path: Path, kind: str, reader: GGUFReader, flags: Mapping[str, Any]) -> Any:
    """The tokenizer as transformers reads it, with what its reader drops."""
    from tokenizers import decoders
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Metaspace, Sequence
    from transformers import AutoTokenizer

    tokenizer = _read(path, lambda: AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name))
    if flags["ggml.model"] == "gpt2":
        _read(path, lambda: _add_whole(tokenizer, reader))
    backend, splitting = tokenizer.backend_tokenizer, flags.get("ggml.pre")
    if splitting in DIGIT_BY_DIGIT:
        digits = Digits(individual_digits=True)
        backend.pre_tokenizer = Sequence([digits, ByteLevel(add_prefix_space=False)])
    if splitting in WHOLE_WORDS:
        backend.model.ignore_merges = True
    if flags["ggml.model"] == "llama" and kind == "llama" and not flags.get("ggml.add_space_prefix", True):
        backend.pre_tokenizer = Metaspace(prepend_scheme="never", split=False)
        spaces = decoders.Replace("▁", " ")
        backend.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse()])
    if tokenizer.add_bos_token != flags["ggml.add_bos_token"]:
        tokenizer.add_bos_token = flags["ggml.add_bos_token"]
    return tokenizer


def _add_whole(tokenizer: Any, reader: GGUFReader) -> None:
    """Add tokens such as `<｜User｜>`, which transformers' reader spells in bytes and then cuts in texts.

    Tokens beyond the file's vocabulary, which some of its classes add, are dropped.
    """
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import ByteLevel

    types = reader.fields.get("tokenizer.ggml.token_type")
    token_texts = reader.fields["tokenizer.ggml.tokens"].contents()
    alphabet, bytewise = set(ByteLevel.alphabet()), ByteLevel(add_prefix_space=False, use_regex=False)
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    added = [token for token in state["added_tokens"] if token["id"] < len(token_texts)]
    for word, kind in zip(token_texts, types.contents() if types else (), strict=False):
        if kind in (CONTROL, USER_DEFINED) and not set(word) <= alphabet:
            ((in_bytes, _),) = bytewise.pre_tokenize_str(word)
            vocabulary[word] = vocabulary.pop(in_bytes)
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            added.append({"id": vocabulary[word], "content": word, **flags, "special": kind == CONTROL})
    if len(added) != len(state["added_tokens"]) or any(token not in state["added_tokens"] for token in added):
        state["added_tokens"] = sorted(added, key=lambda token: token["id"])
        tokenizer._tokenizer = Tokenizer.from_str(json.dumps(state))


def _save_tokenizer(
    path: Path, read_tokenizer: Any, folder: Path, reader: GGUFReader, flags: Mapping[str, Any]
) -> None:
    """Save a tokenizer so that it is read as it is; InputError if a class builds its own family's instead."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    def steps(tokenizer: Any) -> dict[str, Any]:
        # Without the normalizer: Qwen's class adds that of Qwen's own tokenizers, which no GGUF file says.
        return {name: step for name, step in json.loads(tokenizer.to_str()).items() if name != "normalizer"}

    read_tokenizer.save_pretrained(folder)
    backend = read_tokenizer.backend_tokenizer
    if steps(AutoTokenizer.from_pretrained(folder).backend_tokenizer) == steps(backend):
        return
    token_texts = reader.fields["tokenizer.ggml.tokens"].contents()
    gguf_names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    specials = {
        f"{role}_token": token_texts[flags[f"ggml.{gguf_name}_token_id"]]
        for role, gguf_name in gguf_names.items()
        if f"ggml.{gguf_name}_token_id" in flags
    }
    fast_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, **specials, chat_template=flags.get("chat_template")
    )
    fast_tokenizer.save_pretrained(folder)
    saved, read = steps(AutoTokenizer.from_pretrained(folder).backend_tokenizer), steps(backend)
    if (saved["pre_tokenizer"], saved["model"]) != (read["pre_tokenizer"], read["model"]):
        raise InputError(
            f"{path} has tokenizer.ggml.pre={flags.get('ggml.pre')!r}, and transformers reads each tokenizer "
            f"of such a model as {type(read_tokenizer).__name__}, which cuts otherwise"
        )
