"""The entries of a `config.json`: checked when they are read, and counted, so that none is passed over.

Owns what kind of value an entry has, and which entries change no logits. Must not know families.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from repro.core.errors import InputError
from repro.models.checkpoints.stored_numbers import NOTHING

log = logging.getLogger(__name__)

_COUNTS = (
    *("hidden_size", "num_attention_heads", "vocab_size", "num_hidden_layers", "max_position_embeddings"),
    *("num_key_value_heads", "head_dim", "intermediate_size", "ffn_dim", "word_embed_proj_dim"),
    *("n_embd", "n_head", "n_layer", "n_positions", "n_inner", "sliding_window", "sliding_window_pattern"),
    *("original_max_position_embeddings",),
)
_NUMBERS = (
    *("rope_theta", "rope_local_base_freq", "partial_rotary_factor", "query_pre_attn_scalar"),
    *("attn_logit_softcapping", "final_logit_softcapping"),
    *("factor", "low_freq_factor", "high_freq_factor", "attention_factor"),
)
_FLAGS = (
    *("attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window", "enable_bias"),
    *("do_layer_norm_before", "_remove_final_layer_norm", "shares_embeddings"),
)
_TEXTS = ("hidden_act", "hidden_activation", "activation_function", "rope_type", "type")

_KINDS = {
    **dict.fromkeys(_COUNTS, "a whole number of at least 1"),
    "max_window_layers": "a whole number of at least 0",
    **dict.fromkeys(_NUMBERS, "a number above 0"),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"), "a number of at least 0"),
    **dict.fromkeys(_FLAGS, "true or false"),
    **dict.fromkeys(_TEXTS, "a text"),
    **dict.fromkeys(("rope_parameters", "rope_scaling", "text_config"), "a mapping"),
    **dict.fromkeys(("layer_types", "short_factor", "long_factor"), "a list"),
}
"""What each entry that is read must be."""

_NULLABLE = frozenset(
    {
        *(
            "num_key_value_heads",
            "head_dim",
            "n_inner",
            "word_embed_proj_dim",
            "sliding_window",
            "layer_types",
        ),
        *("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "hidden_act"),
        *("attn_logit_softcapping", "final_logit_softcapping", "sliding_window_pattern"),
        *("rope_local_base_freq", "factor", "original_max_position_embeddings", "rope_type", "type"),
    }
)
"""Entries that may be null."""

HARMLESS: dict[str, str] = {
    name: reason
    for reason, names in {
        "names and origins": (
            *("model_type", "architectures", "transformers_version", "auto_map", "license"),
            *("_name_or_path", "name_or_path", "_model_name_or_path", "_commit_hash", "is_local"),
        ),
        "for training": (
            *("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "dropout", "hidden_dropout"),
            *("activation_dropout", "layerdrop", "initializer_range", "init_std", "gradient_checkpointing"),
        ),
        "tokens that begin, end or fill a text, which the tokenizer reads": (
            *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "prefix"),
            *("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"),
        ),
        "precision, which the model file chooses": ("dtype", "torch_dtype", "use_bfloat16"),
        "how stored numbers are meant, which `stored_numbers` judges": (
            *("quantization_config", "quantization", "compression_config"),
        ),
        "how the same logits are computed, split or returned": (
            *("use_cache", "pretraining_tp", "chunk_size_feed_forward", "reorder_and_upcast_attn", "n_ctx"),
            *("_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "is_decoder"),
            *("output_attentions", "output_hidden_states", "return_dict", "use_return_dict", "torchscript"),
            *("is_encoder_decoder", "local_files_only", "cache_implementation"),
        ),
        "heads for other tasks": (
            *("id2label", "label2id", "num_labels", "problem_type", "classifier_dropout", "finetuning_task"),
            *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
            *("summary_first_dropout", "summary_last_dropout", "task_specific_params"),
        ),
        "settings of `generate`, which runs here by the cell's own": (
            *("do_sample", "temperature", "top_k", "top_p", "num_beams", "max_length", "min_length"),
            *("max_new_tokens", "repetition_penalty", "length_penalty", "no_repeat_ngram_size"),
        ),
        "other modalities than text": (
            *("vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index"),
            *("image_token_index", "image_token_id", "boi_token_id", "eoi_token_id"),
        ),
        "a name of before for `layer_types`, which transformers ignores": ("_sliding_window_pattern",),
    }.items()
    for name in names
}
"""Entries that change no logits of a text, with the reason."""


class Entries(Mapping[str, Any]):
    """A `config.json` whose entries are checked when they are read (InputError), and which counts them."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        value = self._raw[name]
        self._read.add(name)
        require_kind(name, value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def pass_over(self, *names: str) -> None:
        """Count entries as read whose value another entry makes void."""
        self._read.update(names)

    def warn_of_unread(self, kind: str) -> None:
        """Name in one warning the entries that neither we nor transformers' class of this kind read."""
        if unread := sorted(self._raw.keys() - self._read - HARMLESS.keys()):
            _warn(f"config.json of {kind}: ignored, as by transformers: {', '.join(unread)}")

    def refuse_unread(self, kind: str) -> None:
        """InputError for the first entry that is neither read nor harmless, unless it says nothing."""
        for name in sorted(self._raw.keys() - self._read - HARMLESS.keys()):
            if self._raw[name] not in NOTHING:
                raise InputError(
                    f"config.json of {kind} has {name}={self._raw[name]!r}, which is not read here"
                )


@cache
def _warn(text: str) -> None:
    log.warning(text)


def require_kind(name: str, value: Any) -> None:
    """InputError unless an entry's value is of its kind."""
    kind = _KINDS.get(name)
    if kind is None or (value is None and name in _NULLABLE) or _is(kind, value):
        return
    raise InputError(
        f"config.json has {name}={value!r}; it must be {kind}{' or null' if name in _NULLABLE else ''}"
    )


def _is(kind: str, value: Any) -> bool:
    if kind in ("a text", "true or false", "a mapping", "a list"):
        return isinstance(
            value, {"a text": str, "true or false": bool, "a mapping": Mapping, "a list": list}[kind]
        )
    types: Any = int if kind.startswith("a whole number") else (int, float)
    if isinstance(value, bool) or not isinstance(value, types) or not math.isfinite(value):
        return False
    return bool(value > 0 if kind.endswith("above 0") else value >= int(kind[-1]))
