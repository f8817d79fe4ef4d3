"""The files of a checkpoint folder: its configuration, its tensors by name, and the hash of it all.

Owns reading. Knows nothing of what tensors are for.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from repro.core.errors import InputError

CONFIG = "config.json"
DIGESTS = ".digests.json"


def read_config(folder: Path | str) -> dict[str, Any]:
    """The contents of a folder's `config.json`; InputError when there is none or it is not JSON."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise InputError(f"{folder} is no checkpoint folder: it has no {CONFIG}")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} must hold one object, got {type(found).__name__}")
    return found


class StoredTensors:
    """The tensors of all `*.safetensors` files in a folder, found by name and read when asked for."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise InputError(f"{folder} holds no *.safetensors file")
        self._files = {path: _opened(path) for path in files}
        self._home = {name: path for path, file in self._files.items() for name in file.keys()}  # noqa: SIM118

    def __contains__(self, name: str) -> bool:
        return name in self._home

    def prefix_of(self, start: str, prefixes: Sequence[str]) -> str:
        """The prefix under which names that begin with `start` are stored."""
        for prefix in prefixes:
            if any(name.startswith(prefix + start) for name in self._home):
                return prefix
        wanted = " or ".join(f"{prefix}{start}*" for prefix in prefixes)
        raise InputError(f"{self.folder} holds no tensor {wanted}")

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor; InputError that names tensor and file when it is missing or has another shape."""
        if name not in self._home:
            raise InputError(f"tensor {name} is missing from {', '.join(map(str, self._files))}")
        path = self._home[name]
        found: Tensor = self._files[path].get_tensor(name)
        if found.shape != shape:
            raise InputError(f"tensor {name} in {path} has shape {list(found.shape)}, expected {list(shape)}")
        return found


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise InputError(f"{path} is not a whole safetensors file: {error}") from error


def digest(folder: Path | str) -> str:
    """SHA-256 over the names and contents of a folder's files (hidden ones left out), in hex.

    Each file's hash is kept in the folder's `.digests.json` with its size and modification time, and computed
    again when either changed.
    """
    folder = Path(folder)
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not files:
        raise InputError(f"{folder} holds no files to hash")
    known = _known_digests(folder / DIGESTS)
    fresh = {path.name: _file_digest(path, known.get(path.name)) for path in files}
    if fresh != known:
        _remember(folder / DIGESTS, fresh)
    whole = hashlib.sha256()
    for name, (_, _, content) in fresh.items():
        whole.update(f"{name}\0{content}\n".encode())
    return whole.hexdigest()


def _file_digest(path: Path, known: list[Any] | None) -> list[Any]:
    """Size in bytes, modification time in ns, and SHA-256 of one file."""
    stat = path.stat()
    if known is not None and known[:2] == [stat.st_size, stat.st_mtime_ns]:
        return known
    with path.open("rb") as file:
        return [stat.st_size, stat.st_mtime_ns, hashlib.file_digest(file, "sha256").hexdigest()]


def _known_digests(path: Path) -> dict[str, list[Any]]:
    if not path.is_file():
        return {}
    found: dict[str, list[Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _remember(path: Path, digests: dict[str, list[Any]]) -> None:
    """Write the hashes whole; a folder that is read-only is hashed anew each time, which is only slower."""
    if not os.access(path.parent, os.W_OK):
        return
    with NamedTemporaryFile("w", dir=path.parent, prefix=DIGESTS, delete=False, encoding="utf-8") as file:
        json.dump(digests, file)
    Path(file.name).replace(path)
