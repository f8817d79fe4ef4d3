"""File access for checkpoint folders: `config.json`, and tensors by name.

Owns reading tensors and writing small tensor files. Must not know what tensors are for.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from safetensors import SafetensorError, safe_open

from repro.core.errors import InputError
from repro.libraries import Tensor, torch
from repro.models.checkpoints.stored_numbers import FLOATS, require_floats
from repro.models.checkpoints.weight_files import header, homes, index, read_json, weight_files
from repro.records.record import write_atomically

CONFIG = "config.json"
NONE = re.compile(r"(?!)")
"""The pattern that matches no name."""

Shapes: TypeAlias = "Mapping[str, tuple[int, ...]]"


def read_config(folder: Path | str) -> dict[str, Any]:
    """The contents of a folder's `config.json`; InputError if it is missing or not a JSON object."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise InputError(f"{folder} is no checkpoint folder: it has no {CONFIG}")
    return read_json(path)


class Tensors(Protocol):
    """Tensors by name."""

    def __contains__(self, name: str) -> bool: ...

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor; InputError naming tensor and file if it is missing or has another shape."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one tensor; InputError if it is missing."""
        ...

    def require(self, shapes: Shapes, unused: re.Pattern[str] = NONE) -> None:
        """InputError unless the tensors are these, beside those whose whole name matches `unused`."""
        ...


class PickledTensors:
    """The tensors of a `torch.save` file; see `Tensors`."""

    def __init__(self, path: Path) -> None:
        """Read the file; InputError as in `unpickled`."""
        self._path = path
        self._tensors = unpickled(path)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """See `Tensors`."""
        if name not in self._tensors:
            raise InputError(f"tensor {name} is missing from {self._path}")
        return tuple(self._tensors[name].shape)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See `Tensors`."""
        if self.shape(name) != shape:
            raise _wrong_shape(name, self._path, self.shape(name), shape)
        return self._tensors[name]

    def require(self, shapes: Shapes, unused: re.Pattern[str] = NONE) -> None:
        """See `Tensors`."""
        stored = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
        _require(stored, dict.fromkeys(stored, self._path), shapes, unused)


class StoredTensors:
    """The tensors of a folder's weight files (`weight_files`), read on demand; see `Tensors`.

    Attributes:
        folder: where they lie.
    """

    def __init__(self, folder: Path | str) -> None:
        """Open the files; InputError for files or stored numbers that are not read (`require_floats`)."""
        self.folder = Path(folder)
        files = weight_files(self.folder)
        if not files:
            raise InputError(f"{folder} holds no *.safetensors file")
        headers = {path: header(path) for path in files}
        self._home = homes(headers, index(self.folder))
        self._headers = {name: headers[path][name] for name, path in self._home.items()}
        require_floats(self._headers, self._home)

    @cached_property
    def _files(self) -> dict[Path, Any]:
        """The files, opened when the first tensor is read: names and shapes are known without torch."""
        return {path: opened(path) for path in dict.fromkeys(self._home.values())}

    def __contains__(self, name: str) -> bool:
        return name in self._home

    def prefix_of(self, start: str, prefixes: Sequence[str]) -> str:
        """The first prefix for which a tensor name begins with prefix + `start`; InputError if none."""
        for prefix in prefixes:
            if self.begins(prefix + start):
                return prefix
        wanted = " or ".join(f"{prefix}{start}*" for prefix in prefixes)
        raise InputError(f"{self.folder} holds no tensor {wanted}")

    def begins(self, start: str) -> bool:
        """Whether a tensor's name begins with this."""
        return any(name.startswith(start) for name in self._home)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See `Tensors`."""
        path = self._file_of(name)
        tensor: Tensor = self._files[path].get_tensor(name)
        if tensor.shape != shape:
            raise _wrong_shape(name, path, tensor.shape, shape)
        if self._headers[name].kind not in FLOATS:
            raise InputError(
                f"{path} stores {name} as {self._headers[name].kind}; it must be {', '.join(FLOATS)}"
            )
        return tensor

    def require(self, shapes: Shapes, unused: re.Pattern[str] = NONE) -> None:
        """See `Tensors`."""
        stored = {name: header.shape for name, header in self._headers.items()}
        _require(stored, self._home, shapes, unused)

    def take_whole_numbers(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of ids or flags, int64; errors as in `take`."""
        path = self._file_of(name)
        tensor: Tensor = self._files[path].get_tensor(name)
        if tensor.shape != shape:
            raise _wrong_shape(name, path, tensor.shape, shape)
        if tensor.is_floating_point():
            raise InputError(f"{path} stores {name} as {self._headers[name].kind}; it must be whole numbers")
        return tensor.long()

    def shape(self, name: str) -> tuple[int, ...]:
        """See `Tensors`."""
        self._file_of(name)
        return self._headers[name].shape

    def _file_of(self, name: str) -> Path:
        if name not in self._home:
            raise InputError(
                f"tensor {name} is missing from {', '.join(map(str, dict.fromkeys(self._home.values())))}"
            )
        return self._home[name]


def _require(
    stored: Shapes, home: Mapping[str, Path], shapes: Shapes, unused: re.Pattern[str] = NONE
) -> None:
    """InputError unless the stored tensors, of the files in `home`, have these names and shapes."""
    files = ", ".join(map(str, dict.fromkeys(home.values())))
    if missing := [name for name in shapes if name not in stored]:
        raise InputError(f"tensor {_named(missing)} is missing from {files}")
    for name, shape in shapes.items():
        if stored[name] != shape:
            raise _wrong_shape(name, home[name], stored[name], shape)
    if unread := [name for name in stored if name not in shapes and not unused.fullmatch(name)]:
        raise InputError(
            f"{home[unread[0]]} has tensor {_named(unread)}, which is no part of the model that config.json "
            "describes; correct config.json, or save the weights without it"
        )


def _named(names: Sequence[str]) -> str:
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")


def _wrong_shape(name: str, path: Path, found: Sequence[int], wanted: Sequence[int]) -> InputError:
    return InputError(f"tensor {name} in {path} has shape {list(found)}, expected {list(wanted)}")


def unpickled(path: Path) -> dict[str, Tensor]:
    """The tensors of a `torch.save` file, loaded with `weights_only=True`, which runs no code from it.

    Raises:
        InputError: the file is truncated, holds more than tensors, or is not a mapping of names to tensors.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(f"{path} holds more than tensors: {error}") from error
    except (RuntimeError, EOFError) as error:
        raise InputError(f"{path} is not a whole file of tensors: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise InputError(f"{path} is not one mapping of names to tensors")
    return found


def opened(path: Path) -> Any:
    """A safetensors file, of torch's tensors; InputError if it is damaged."""
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise InputError(f"{path} is not a whole safetensors file: {error}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of one safetensors file; InputError if it is damaged."""
    with opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write_model(path: Path, model: Any) -> None:
    """Write the tensors of a torch module to a safetensors file, those that it uses twice once."""
    from safetensors.torch import save_model

    save_model(model, str(path), {"format": "pt"})


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write a safetensors file atomically, with `about` as metadata."""
    from safetensors.torch import save

    write_atomically(path, save(dict(tensors), dict(about)))
