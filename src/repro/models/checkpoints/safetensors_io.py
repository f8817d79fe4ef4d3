"""File access for checkpoint folders: `config.json`, and tensors by name.

Owns reading tensors and writing small tensor files. Must not know what tensors are for.
"""

from __future__ import annotations

import pickle
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import SafetensorError, safe_open

from repro.core.errors import InputError
from repro.libraries import Tensor, torch
from repro.models.checkpoints.weight_files import (
    FLOAT_TYPES,
    StoredTensor,
    require_floats,
    stored_tensors,
)
from repro.records.record import write_atomically

NO_NAME = re.compile(r"(?!)")
"""The pattern that matches no name."""

Shapes: TypeAlias = "Mapping[str, tuple[int, ...]]"


class Tensors(ABC):
    """Tensors by name, whose entries are known."""

    _entries: Mapping[str, StoredTensor]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @abstractmethod
    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor; InputError naming tensor and file if it is missing or has another shape."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one tensor; InputError if it is missing."""
        return self._entry(name).shape

    def require(self, shapes: Shapes, unused: re.Pattern[str] = NO_NAME) -> None:
        """InputError unless the tensors are these, beside those whose whole name matches `unused`."""
        if missing_names := [name for name in shapes if name not in self._entries]:
            raise InputError(f"tensor {_first(missing_names)} is missing from {self._files_named()}")
        for name, shape in shapes.items():
            self._entry(name, shape)
        if extras := [name for name in self._entries if name not in shapes and not unused.fullmatch(name)]:
            raise InputError(
                f"{self._entries[extras[0]].path} has tensor {_first(extras)}, which is no part of the model "
                "that config.json describes; correct config.json, or save the weights without it"
            )

    def _entry(self, name: str, shape: tuple[int, ...] | None = None) -> StoredTensor:
        """A tensor's entry; InputError if it is missing, or has another shape than the given one."""
        if name not in self._entries:
            raise InputError(f"tensor {name} is missing from {self._files_named()}")
        entry = self._entries[name]
        if shape not in (None, entry.shape):
            raise InputError(
                f"tensor {name} in {entry.path} has shape {list(entry.shape)}, expected {list(shape or ())}"
            )
        return entry

    def _files_named(self) -> str:
        return ", ".join(dict.fromkeys(str(entry.path) for entry in self._entries.values()))


class PickledTensors(Tensors):
    """The tensors of a `torch.save` file; see `Tensors`."""

    def __init__(self, path: Path) -> None:
        """Read the file; InputError as in `unpickle_tensors`."""
        self._tensors = unpickle_tensors(path)
        self._entries = {
            name: StoredTensor(str(tensor.dtype), tuple(tensor.shape), path)
            for name, tensor in self._tensors.items()
        }

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See `Tensors`."""
        self._entry(name, shape)
        return self._tensors[name]


class StoredTensors(Tensors):
    """The tensors of a folder's weight files (`stored_tensors`), read on demand; see `Tensors`.

    Attributes:
        folder: where they lie.
    """

    def __init__(self, folder: Path | str) -> None:
        """Open the files; InputError for files or stored numbers that are not read (`require_floats`)."""
        self.folder = Path(folder)
        self._entries = stored_tensors(self.folder)
        if not self._entries:
            raise InputError(f"{folder} holds no *.safetensors file with tensors")
        require_floats(self._entries)

    @cached_property
    def _files(self) -> dict[Path, Any]:
        """The files, opened when the first tensor is read: names and shapes are known without torch."""
        return {path: open_safetensors(path) for path in {entry.path for entry in self._entries.values()}}

    def prefix_of(self, start: str, prefixes: Sequence[str]) -> str:
        """The first prefix for which a tensor name begins with prefix + `start`; InputError if none."""
        for prefix in prefixes:
            if self.begins(prefix + start):
                return prefix
        patterns = " or ".join(f"{prefix}{start}*" for prefix in prefixes)
        raise InputError(f"{self.folder} holds no tensor {patterns}")

    def begins(self, start: str) -> bool:
        """Whether a tensor's name begins with this."""
        return any(name.startswith(start) for name in self._entries)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See `Tensors`; InputError also for a tensor of other numbers than `FLOATS`."""
        entry = self._entry(name, shape)
        if entry.kind not in FLOAT_TYPES:
            raise InputError(
                f"{entry.path} stores {name} as {entry.kind}; it must be {', '.join(FLOAT_TYPES)}"
            )
        tensor: Tensor = self._files[entry.path].get_tensor(name)
        return tensor

    def take_whole_numbers(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of ids or flags, int64; InputError as in `take`, or for floating-point numbers."""
        entry = self._entry(name, shape)
        tensor: Tensor = self._files[entry.path].get_tensor(name)
        if tensor.is_floating_point():
            raise InputError(f"{entry.path} stores {name} as {entry.kind}; it must be whole numbers")
        return tensor.long()


def _first(names: Sequence[str]) -> str:
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")


def unpickle_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a `torch.save` file, loaded with `weights_only=True`, which runs no code from it.

    Raises:
        InputError: the file is truncated, holds more than tensors, or is not a mapping of names to tensors.
    """
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(f"{path} holds more than tensors: {error}") from error
    except (RuntimeError, EOFError) as error:
        raise InputError(f"{path} is not a whole file of tensors: {error}") from error
    if not isinstance(saved, dict) or not all(isinstance(value, torch.Tensor) for value in saved.values()):
        raise InputError(f"{path} is not one mapping of names to tensors")
    return saved


def open_safetensors(path: Path) -> Any:
    """A safetensors file, of torch's tensors; InputError if it is damaged."""
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise InputError(f"{path} is not a whole safetensors file: {error}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of one safetensors file; InputError if it is damaged."""
    with open_safetensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write_model(path: Path, model: Any) -> None:
    """Write the tensors of a torch module to a safetensors file, those that it uses twice once."""
    from safetensors.torch import save_model

    save_model(model, str(path), {"format": "pt"})


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file atomically, with `metadata`."""
    from safetensors.torch import save

    write_atomically(path, save(dict(tensors), dict(metadata)))
