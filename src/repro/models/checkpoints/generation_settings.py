"""What a checkpoint's files say of generating: the tokens that end an answer, and what a run does not use.

Owns `generation_config.json`. Must not know how answers are generated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.models.checkpoints.weight_files import CONFIG_FILE, read_json

FILE_NAME = "generation_config.json"

SAMPLING_KEYS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "top_h",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
)
BEAM_KEYS = ("length_penalty", "early_stopping", "num_beam_groups", "diversity_penalty")

DECISIVE_KEYS = frozenset(
    {
        *("do_sample", "num_beams", "min_length", "min_new_tokens", "max_time", "stop_strings"),
        *("repetition_penalty", "encoder_repetition_penalty"),
        *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "sequence_bias"),
        *("suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids", "force_words_ids", "constraints"),
        *("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty"),
        *("guidance_scale", "penalty_alpha", "dola_layers", "watermarking_config", "token_healing"),
        *SAMPLING_KEYS,
        *BEAM_KEYS,
    }
)
"""Entries by which `generate` of transformers changes an answer."""

HARMLESS_SETTINGS = frozenset(
    {
        *(
            "eos_token_id",
            "bos_token_id",
            "pad_token_id",
            "decoder_start_token_id",
        ),  # used, or in `config.json`
        *("max_length", "max_new_tokens"),  # the run's `max_tokens`
        *("transformers_version", "num_return_sequences", "renormalize_logits", "remove_invalid_values"),
        *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "return_legacy_cache"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
        *("return_dict_in_generate", "compile_config", "disable_compile", "low_memory", "use_mtp"),
        *("prefill_chunk_size", "continuous_batching_config", "is_assistant", "num_assistant_tokens"),
        *("num_assistant_tokens_schedule", "assistant_confidence_threshold", "assistant_early_exit"),
        *("assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight", "speculation_type"),
        *("prompt_lookup_num_tokens", "max_matching_ngram_size"),
    }
)
"""Entries of `generation_config.json` that change no greedy answer, or that the run has settings for."""

NEUTRAL_VALUES = {
    "top_k": (50,),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "guidance_scale"), (1,)),
    **dict.fromkeys(("num_beams", "num_beam_groups", "length_penalty"), (1,)),
    **dict.fromkeys(("temperature", "top_p", "typical_p"), (1,)),
}
"""Values of entries that change nothing, beside those that are null, false, 0 or empty."""


def ends(folder: Path, of_tokenizer: int | None) -> dict[int, tuple[str, ...]]:
    """The tokens that end an answer, each with what names it: the tokenizer, a file of the folder.

    All of them count, where `generate` of transformers takes those of `generation_config.json` alone.

    Raises:
        InputError: a file names something else than ids.
    """
    names_of_end = {} if of_tokenizer is None else {of_tokenizer: ["tokenizer"]}
    for name in (FILE_NAME, CONFIG_FILE):
        for part in _parts(folder / name):
            value = part.get("eos_token_id")
            for end in value if isinstance(value, list) else [value]:
                if end is None:
                    continue
                if type(end) is not int or end < 0:
                    raise InputError(f"{folder / name} has eos_token_id={value!r}; it must be ids of tokens")
                names_of_end.setdefault(end, []).append(name)
    return {end: tuple(dict.fromkeys(places)) for end, places in sorted(names_of_end.items())}


def unused_settings(folder: Path) -> str:
    """What of a checkpoint's settings `generate` of transformers would answer by and a run does not.

    They are those of `generation_config.json`, or of `config.json` where that file is not.

    Returns:
        `FILE says NAME=VALUE, ...`; "" if there are none.
    """
    name = FILE_NAME if (folder / FILE_NAME).is_file() else CONFIG_FILE
    entries: dict[str, Any] = {}
    for part in reversed([*_parts(folder / name)]):
        entries |= {key: value for key, value in part.items() if name == FILE_NAME or key in DECISIVE_KEYS}
    decisive = {key: value for key, value in entries.items() if _decides(key, value, entries)}
    settings_text = ", ".join(f"{key}={json.dumps(value)[:60]}" for key, value in sorted(decisive.items()))
    return f"{name} says {settings_text}" if settings_text else ""


def _decides(name: str, value: Any, entries: Mapping[str, Any]) -> bool:
    """Whether an entry changes an answer, as the others are."""
    if name in HARMLESS_SETTINGS or name.startswith("_") or value in NEUTRAL_VALUES.get(name, ()):
        return False
    if name in SAMPLING_KEYS and not entries.get("do_sample"):
        return False
    if name in BEAM_KEYS and (entries.get("num_beams") or 1) == 1:
        return False
    is_token = name.startswith("forced_") and type(value) is int  # be it 0
    return bool(value) or is_token


def _parts(path: Path) -> Iterator[Mapping[str, Any]]:
    """The entries of a file and of its `text_config`; nothing if it is not there."""
    if path.is_file():
        content = read_json(path)
        yield content
        if isinstance(text := content.get("text_config"), dict):
            yield text
