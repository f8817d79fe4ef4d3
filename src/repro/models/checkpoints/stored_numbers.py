"""Which stored numbers are read: plain ones.

Owns how files say that theirs are others. Must not know which tensor is which part of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repro.core.errors import InputError
from repro.models.checkpoints.weight_files import StoredTensor

FLOATS = ("F32", "F16", "BF16")
"""The safetensors types that are plain numbers."""

KEYS = ("quantization_config", "quantization", "compression_config")
"""Entries of `config.json` that say how numbers are stored: transformers', MLX's, older llm-compressor's."""

NOTHING: tuple[Any, ...] = (None, False, {}, [], "")
"""Values by which an entry that is not known says nothing."""


def quantized_by(config_json: Mapping[str, Any]) -> str | None:
    """The method by which a `config.json` says that weights are quantized; None for plain numbers.

    Raises:
        InputError: the entry is no mapping.
    """
    parts = [part for part in (config_json, config_json.get("text_config")) if isinstance(part, Mapping)]
    entries = [(key, part[key]) for part in parts for key in KEYS if part.get(key) not in NOTHING]
    if not entries:
        return None
    key, config = entries[0]
    if not isinstance(config, Mapping):
        raise InputError(f"{key} is {config!r}; it must be a mapping")
    return str(config.get("quant_method", "MLX" if key == "quantization" else "?"))


def require_plain(config: Mapping[str, Any]) -> None:
    """InputError for quantized weights, where nothing dequantizes them."""
    if method := quantized_by(config):
        raise InputError(f"{config.get('model_type')} in {method} is not read; only plain numbers are")


def require_floats(tensors: Mapping[str, StoredTensor]) -> None:
    """InputError unless every weight and bias of these tensors, by name, is a plain number."""
    for name, tensor in tensors.items():
        is_bias = name.endswith("bias") and len(tensor.shape) == 1  # 4: GPT-2's masks
        if (name.endswith("weight") or is_bias) and tensor.kind not in FLOATS:
            raise InputError(f"{tensor.path} stores {name} as {tensor.kind}; a weight is {', '.join(FLOATS)}")
