"""Quantized weights, of which `transformers` makes plain numbers in a folder of their own.

Owns the formats and what they need. Must not know where the folders lie.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.models.checkpoints.safetensors_io import write_model
from repro.models.checkpoints.weight_files import (
    CONFIG_FILE,
    FLOAT_TYPES,
    INDEX_FILE,
    QUANTIZATION_KEYS,
    SINGLE_FILE,
    TENSORS_SUFFIX,
    read_config,
    stored_tensors,
)

PACKAGE_OF_METHOD = {"fp8": "", "compressed-tensors": "compressed_tensors", "bitsandbytes": "bitsandbytes"}
"""Formats that are dequantized, by `quant_method`, with the package that `transformers` needs for it."""


def require_dequantizable(method: str) -> None:
    """InputError for a method that is not dequantized, or whose package is not installed."""
    other_way = f"or save it dequantized, in {', '.join(FLOAT_TYPES)}"
    if method not in PACKAGE_OF_METHOD:
        raise InputError(
            f"its weights are quantized by {method!r}, which is not read here; dequantized are "
            f"{', '.join(PACKAGE_OF_METHOD)}; {other_way}"
        )
    if PACKAGE_OF_METHOD[method] and find_spec(PACKAGE_OF_METHOD[method]) is None:
        raise InputError(
            f"its weights are quantized by {method!r}, which takes the package of that name: "
            f"`pip install 'repro[quantized]'` brings it; {other_way}"
        )


def dequantize(folder: Path, target: Path, store: str) -> None:
    """Write a checkpoint with quantized weights as one of plain numbers, and copy its other files.

    Args:
        folder: the checkpoint, in one of `PACKAGE_OF_METHOD`.
        target: the new folder.
        store: the dtype of the new weights.

    Raises:
        InputError: `transformers` does not read the weights, or not all of them.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        _require_whole_blocks(folder, config.quantization_config)
        config.quantization_config = {**config.quantization_config, "dequantize": True}
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, store),
            output_loading_info=True,
            trust_remote_code=False,
        )
        if config.quantization_config["quant_method"] == "bitsandbytes":
            model = model.dequantize()
    except InputError:
        raise
    except Exception as error:  # they raise many kinds: of values, keys, shapes, attributes
        reason = " ".join(str(error).split())
        raise InputError(f"{folder} cannot be dequantized: {type(error).__name__}: {reason}") from error
    if unread_names := sorted(name for names in report.values() for name in names):
        raise InputError(f"{folder} cannot be dequantized: {unread_names[0]} is missing or is not read")
    target.mkdir()
    for path in folder.iterdir():
        if path.is_file() and path.suffix != TENSORS_SUFFIX and path.name != INDEX_FILE:
            shutil.copyfile(path, target / path.name)
    written_config = {
        name: value for name, value in read_config(folder).items() if name not in QUANTIZATION_KEYS
    }
    (target / CONFIG_FILE).write_text(json.dumps(written_config, indent=2) + "\n", encoding="utf-8")
    write_model(target / SINGLE_FILE, model)


def _require_whole_blocks(folder: Path, config: Mapping[str, Any]) -> None:
    """InputError for a scale of fp8 whose blocks do not cover its weight exactly.

    `transformers` divides a weight evenly among its scales, which is then wrong.
    """
    tensors = stored_tensors(folder)
    block = config.get("weight_block_size") or (128, 128)
    for name, scale in tensors.items():
        if name.endswith("weight_scale_inv"):
            shape = tensors[name.removesuffix("_scale_inv")].shape
            if shape != tuple(
                scale_count * block_size for scale_count, block_size in zip(scale.shape, block, strict=True)
            ):
                raise InputError(
                    f"{folder} cannot be dequantized: {name} has shape {list(scale.shape)}, and blocks of "
                    f"{list(block)} are not all of {list(shape)}"
                )
