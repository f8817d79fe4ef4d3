"""Which safetensors files of a folder hold its weights, what their headers say, and its `config.json`.

Owns the order in which files count, the check of headers, and which stored numbers are read: plain ones. Must
not know which tensor is which part of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from repro.core.errors import InputError
from repro.core.reading import JSON_BYTES, is_settled, parse_json, read_bytes

CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TENSORS_SUFFIX = ".safetensors"
HEADER_BYTES = 100_000_000
"""Largest header that the library of safetensors reads."""


class StoredTensor(NamedTuple):
    """A tensor's entry in a header: its safetensors type and its shape, and the header's file."""

    kind: str
    shape: tuple[int, ...]
    path: Path


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a folder's weights by name, each as the file has it from which it is read.

    The files are `model.safetensors`, else those of the index, which then decides alone, else all.

    Raises:
        InputError: a file or the index is damaged; two files have the same tensor and no index decides; the
            index names a file for a tensor that this file lacks; or a file has a tensor that the index does
            not name.
    """
    weight_map = index(folder)
    files = sorted({folder / name for name in weight_map.values()}) or sorted(
        folder.glob(f"*{TENSORS_SUFFIX}")
    )
    tensors: dict[str, StoredTensor] = {}
    for path in [folder / SINGLE_FILE] if (folder / SINGLE_FILE).is_file() else files:
        for name, tensor in header(path).items():
            if weight_map and name not in weight_map:
                raise InputError(
                    f"{path} has tensor {name}, which {INDEX_FILE} does not name: add it or remove it"
                )
            if weight_map and weight_map[name] != path.name:
                continue
            if name in tensors:
                raise InputError(
                    f"tensor {name} is in {tensors[name].path.name} and in {path.name} of {folder}, and "
                    f"neither {SINGLE_FILE} nor {INDEX_FILE} decides; remove the files that do not belong to "
                    "the model"
                )
            tensors[name] = tensor
    for name in sorted(weight_map.keys() - tensors.keys()):
        raise InputError(
            f"tensor {name} is missing from {folder / weight_map[name]}, where {INDEX_FILE} has it"
        )
    return tensors


def index(folder: Path) -> dict[str, str]:
    """The file of each tensor in the index; empty if `model.safetensors` makes it void or there is none."""
    if not (folder / INDEX_FILE).is_file() or (folder / SINGLE_FILE).is_file():
        return {}
    weight_map = read_json(folder / INDEX_FILE).get("weight_map", {})
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise InputError(f"{folder / INDEX_FILE} is damaged: its weight_map must map tensors to files")
    if outside_names := [name for name in weight_map.values() if Path(name).name != name]:
        raise InputError(f"{folder / INDEX_FILE} names {outside_names[0]!r}, which is not in its folder")
    return dict(weight_map)


def header(path: Path) -> Mapping[str, StoredTensor]:
    """The tensors of one file, by name; read again when the file is another one.

    Raises:
        InputError: the file is no regular one, its header does not parse or does not match the file's size.
    """
    if not path.is_file():
        raise InputError(f"{path} is no regular file")
    stat = path.stat()
    read_header = _header if is_settled(stat) else _header.__wrapped__
    return read_header(path, stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)


@lru_cache(maxsize=64)
def _header(path: Path, file_size: int, *_: int) -> Mapping[str, StoredTensor]:
    """`header` of a file with this size; what else is given changes with the file."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if file_size < 8 or length > file_size - 8:
            raise InputError(
                f"{path} is corrupt: {file_size} bytes, but its header alone should take {length + 8}"
            )
        try:
            if length > HEADER_BYTES:
                raise ValueError(f"{length} bytes; at most {HEADER_BYTES} are read")
            entries = parse_json(stream.read(length))
            entries.pop("__metadata__", None)
            ends = [int(entry["data_offsets"][1]) for entry in entries.values()]
            tensors = {
                name: StoredTensor(str(entry["dtype"]), tuple(entry["shape"]), path)
                for name, entry in entries.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise InputError(f"{path} is corrupt: its header does not parse ({error})") from error
    expected_size = 8 + length + max(ends, default=0)
    if file_size != expected_size:
        raise InputError(f"{path} is corrupt: {file_size} bytes, its header asks for {expected_size}")
    return tensors


def read_config(folder: Path | str) -> dict[str, Any]:
    """The contents of a folder's `config.json`; InputError if it is missing or not a JSON object."""
    path = Path(folder) / CONFIG_FILE
    if not path.is_file():
        raise InputError(f"{folder} is no checkpoint folder: it has no {CONFIG_FILE}")
    return read_json(path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; InputError if it holds anything else."""
    try:
        content = parse_json(read_bytes(path, JSON_BYTES))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold one JSON object, got {type(content).__name__}")
    return content


FLOAT_TYPES = ("F32", "F16", "BF16")
"""The safetensors types that are plain numbers."""

QUANTIZATION_KEYS = ("quantization_config", "quantization", "compression_config")
"""Entries of `config.json` that say how numbers are stored: transformers', MLX's, older llm-compressor's."""

EMPTY_VALUES: tuple[Any, ...] = (None, False, {}, [], "")
"""Values by which an entry that is not known says nothing."""


def quantized_by(raw: Mapping[str, Any]) -> str | None:
    """The method by which a `config.json` says that weights are quantized; None for plain numbers.

    Raises:
        InputError: the entry is no mapping.
    """
    parts = [part for part in (raw, raw.get("text_config")) if isinstance(part, Mapping)]
    entries = [
        (key, part[key]) for part in parts for key in QUANTIZATION_KEYS if part.get(key) not in EMPTY_VALUES
    ]
    if not entries:
        return None
    key, config = entries[0]
    if not isinstance(config, Mapping):
        raise InputError(f"{key} is {config!r}; it must be a mapping")
    return str(config.get("quant_method", "MLX" if key == "quantization" else "?"))


def require_plain(raw: Mapping[str, Any]) -> None:
    """InputError for quantized weights, where nothing dequantizes them."""
    if method := quantized_by(raw):
        raise InputError(f"{raw.get('model_type')} in {method} is not read; only plain numbers are")


def require_floats(tensors: Mapping[str, StoredTensor]) -> None:
    """InputError unless every weight and bias of these tensors, by name, is a plain number."""
    for name, stored in tensors.items():
        is_bias = name.endswith("bias") and len(stored.shape) == 1  # 4: GPT-2's masks
        if (name.endswith("weight") or is_bias) and stored.kind not in FLOAT_TYPES:
            raise InputError(
                f"{stored.path} stores {name} as {stored.kind}; a weight is {', '.join(FLOAT_TYPES)}"
            )
