"""Which safetensors files of a folder hold its weights, and what their headers say.

Owns the order in which files count, and how a file is opened. Must not know what a tensor's numbers mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from repro.core.errors import InputError
from repro.core.reading import JSON_BYTES, parse_json, read_bytes

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TENSORS = ".safetensors"


class StoredTensor(NamedTuple):
    """A tensor's entry in a header: its safetensors type and its shape."""

    kind: str
    shape: tuple[int, ...]


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights: `model.safetensors`, else those of the index, else all.

    Raises:
        InputError: the index is damaged, or names a file outside of the folder.
    """
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    return [folder / name for name in sorted(set(index(folder).values()))] or sorted(
        folder.glob(f"*{TENSORS}")
    )


def index(folder: Path) -> dict[str, str]:
    """The file of each tensor in the index; empty if `model.safetensors` makes it void or there is none."""
    if not (folder / INDEX).is_file() or (folder / SINGLE).is_file():
        return {}
    named = read_json(folder / INDEX).get("weight_map", {})
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise InputError(f"{folder / INDEX} is damaged: its weight_map must map tensors to files")
    if outside := [name for name in named.values() if Path(name).name != name]:
        raise InputError(f"{folder / INDEX} names {outside[0]!r}, which is not in its folder")
    return dict(named)


def homes(headers: Mapping[Path, Mapping[str, StoredTensor]], mapped: Mapping[str, str]) -> dict[str, Path]:
    """The file from which each tensor is read.

    Args:
        headers: the files that count, with their tensors.
        mapped: the index, which decides alone if there is one.

    Raises:
        InputError: two files have the same tensor and no index decides; the index names a file for a tensor
            that this file lacks; or a file has a tensor that the index does not name.
    """
    found: dict[str, Path] = {}
    for path, tensors in headers.items():
        for name in tensors:
            if mapped and name not in mapped:
                raise InputError(
                    f"{path} has tensor {name}, which {INDEX} does not name: add it or remove it"
                )
            if mapped and mapped[name] != path.name:
                continue
            if name in found:
                raise InputError(
                    f"tensor {name} is in {found[name].name} and in {path.name} of {path.parent}, and "
                    f"neither {SINGLE} nor {INDEX} decides; remove the files that do not belong to the model"
                )
            found[name] = path
    if lost := sorted(mapped.keys() - found.keys()):
        folder = next(iter(headers)).parent
        raise InputError(f"tensor {lost[0]} is missing from {folder / mapped[lost[0]]}, where {INDEX} has it")
    return found


def header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, by name; InputError as for `opened`."""
    with opened(path, "numpy") as file:
        entries = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {name: StoredTensor(e.get_dtype(), tuple(e.get_shape())) for name, e in entries.items()}


def opened(path: Path, framework: str = "pt") -> Any:
    """A safetensors file, from which tensors of that framework are taken.

    Raises:
        InputError: the file is no regular one, its header does not parse or does not match the file's size.
    """
    if not path.is_file():
        raise InputError(f"{path} is no regular file")
    try:
        return safe_open(path, framework)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is corrupt: {path.stat().st_size} bytes, {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; InputError if it holds anything else."""
    try:
        content = parse_json(read_bytes(path, JSON_BYTES))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold one JSON object, got {type(content).__name__}")
    return content
