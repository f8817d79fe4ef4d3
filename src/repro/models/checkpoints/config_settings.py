"""The settings of a `config.json`, as transformers' own class of its `model_type` reads them.

Owns which settings change no logits, and the cache of what transformers says: importing it takes seconds.
Must not know what a setting means.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.reading import parse_json
from repro.models.checkpoints.weight_files import EMPTY_VALUES
from repro.records.build_cache import cache_root, computed_once
from repro.records.record import content_hash

log = logging.getLogger(__name__)

NEEDED_KEYS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
"""Whole numbers that every file must have whose class knows them; transformers would take its default."""

MAY_BE_0 = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")

HARMLESS_KEYS = frozenset(
    {
        # names and origins
        *("model_type", "architectures", "transformers_version", "auto_map", "license"),
        *("_name_or_path", "name_or_path", "_model_name_or_path", "_commit_hash", "is_local"),
        # for training
        *("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "dropout", "hidden_dropout"),
        *("activation_dropout", "layerdrop", "initializer_range", "init_std", "gradient_checkpointing"),
        # tokens that begin, end or fill a text, which the tokenizer reads
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "prefix"),
        "decoder_start_token_id",
        # precision, which the model file chooses, and how stored numbers are meant (`weight_files`)
        *("dtype", "torch_dtype", "use_bfloat16"),
        *("quantization_config", "quantization", "compression_config"),
        # how the same logits are computed, split or returned
        *("use_cache", "pretraining_tp", "chunk_size_feed_forward", "reorder_and_upcast_attn", "n_ctx"),
        *("output_attentions", "output_hidden_states", "return_dict", "torchscript", "is_decoder"),
        *("is_encoder_decoder", "local_files_only", "cache_implementation", "_attn_implementation_autoset"),
        # heads for other tasks, other modalities than text
        *("id2label", "label2id", "problem_type", "classifier_dropout", "finetuning_task"),
        *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
        *("summary_first_dropout", "summary_last_dropout", "task_specific_params", "vision_config"),
        *("mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index"),
        *("boi_token_id", "eoi_token_id", "image_token_id"),
    }
)
"""Settings that change no logits of a text."""


class Settings(Mapping[str, Any]):
    """The settings of a model, under transformers' names; those that are not read must not matter.

    A number is checked when it is read: InputError unless it is above 0, or one of `MAY_BE_0`.
    """

    def __init__(self, kind: str, reading: Mapping[str, Any]) -> None:
        """Of a `model_type`, from what `_reading` says."""
        self._kind = kind
        self._values, self._defaults = reading["values"], reading["defaults"]
        self._aliases, self._unknown = reading["aliases"], reading["unknown"]
        self._unread = set(self._values)

    def __getitem__(self, name: str) -> Any:
        name = self._aliases.get(name, name)
        value = self._values[name]
        self._unread.discard(name)
        if type(value) in (int, float) and (value < 0 or (value == 0 and name not in MAY_BE_0)):
            right_values = "0 or above" if name in MAY_BE_0 else "above 0"
            raise InputError(f"config.json of {self._kind} has {name}={value!r}; it must be {right_values}")
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def pass_over(self, *names: str) -> None:
        """Count settings as read that others say again."""
        self._unread.difference_update(names)

    def require_computed(self, part_of: str = "") -> None:
        """Refuse a setting that was not read, unless it has its default or is harmless.

        Entries that transformers' class does not know, and so ignores, are named in a warning, or refused for
        a model that is `part_of` something else.

        Raises:
            InputError: there is such a setting or entry.
        """
        entries = {name: self._values[name] for name in sorted(self._unread - HARMLESS_KEYS)}
        unknown_entries = {name: entries.pop(name) for name in self._unknown if name in entries}
        for name, value in entries.items():
            default = self._defaults.get(name)
            if value != default and (value not in EMPTY_VALUES or default not in EMPTY_VALUES):
                raise InputError(f"{self._kind} with {name}={value!r} is not supported; only {default!r} is")
        for name, value in unknown_entries.items():
            if part_of and value not in EMPTY_VALUES:
                raise InputError(f"config.json of {part_of} has {name}={value!r}, which is not read here")
        if unknown_entries:
            _warn(f"config.json of {self._kind}: ignored, as by transformers: {', '.join(unknown_entries)}")


def read_settings(config: Mapping[str, Any]) -> Settings:
    """The settings of a `config.json`, whose `model_type` transformers has a class of.

    What transformers says is kept in the cache, by the file's content, its version and this module's text.

    Raises:
        InputError: transformers refuses an entry, or one of `NEEDED_KEYS` is missing.
    """
    code = Path(__file__).read_text(encoding="utf-8")
    key = content_hash({"config.json": config, "transformers": version("transformers"), "code": code})[:24]
    reading = computed_once(cache_root() / "configs" / f"{key}.json", lambda: _reading(config))
    return Settings(config["model_type"], reading)


def _reading(config: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers' class makes of a `config.json`.

    Returns:
        `values` and `defaults` of its settings, `aliases` of their names, and those `unknown` to it.
    """
    from transformers import CONFIG_MAPPING

    logging.getLogger("transformers").setLevel(logging.ERROR)  # its import sets it anew
    kind = config["model_type"]
    default_config = CONFIG_MAPPING[kind]()
    aliases = dict(default_config.attribute_map)
    for name in (name for name in NEEDED_KEYS if hasattr(default_config, name)):
        key = name if name in config else aliases.get(name, name)
        if type(config.get(key)) is not int or config[key] < 1:
            fault = f"has {key}={config[key]!r}" if key in config else f"lacks {key}"
            raise InputError(f"config.json of {kind} {fault}; it must be a whole number above 0")
    for name, alias in aliases.items():
        if config.keys() >= {name, alias} and config[name] != config[alias]:
            raise InputError(f"config.json of {kind} has {name}={config[name]} and {alias}={config[alias]}")
    entries = deepcopy({name: value for name, value in config.items() if name != "model_type"})
    try:
        values = _plain_data(type(default_config).from_dict(entries))
    except Exception as error:  # it raises many kinds
        reason = " ".join(str(error).split())
        raise InputError(f"config.json of {kind} is refused by transformers: {reason}") from error
    unknown = sorted(name for name in values if not hasattr(default_config, name))
    return {"values": values, "defaults": _plain_data(default_config), "aliases": aliases, "unknown": unknown}


def _plain_data(config: Any) -> Any:
    """All settings of a configuration of transformers, as plain data."""
    return parse_json(config.to_json_string(use_diff=False))


@cache
def _warn(text: str) -> None:
    log.warning(text)
