"""Validation of a checkpoint folder before a model is loaded, and its provenance.

Owns the checks of its files and their hash. Must not know how a folder is created or what its tensors mean.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.models.checkpoints.digest import digest
from repro.models.checkpoints.wheels import sha256_of

CONFIG = "config.json"
PROVENANCE = "repro.json"
OURS = ("files", "digest")
"""Entries of `repro.json` by which damage is found; not part of a record."""

INDEX = "model.safetensors.index.json"
MEDUSA = "medusa_lm_head.pt"
"""File name of Medusa's public heads: pickled tensors only, loaded with `weights_only=True`."""

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")


def missing_from(folder: Path, tokenizer: bool = True) -> str | None:
    """A clause that says which file is missing from the folder, or None if it is complete.

    Args:
        folder: an existing folder.
        tokenizer: whether a tokenizer is required.
    """
    if not (folder / CONFIG).is_file():
        return f"it has no {CONFIG}"
    if not any(folder.glob("*.safetensors")) and not (folder / MEDUSA).is_file():
        pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
        return "it has no *.safetensors" + (
            f", only pickled weights ({', '.join(pickled)}), which are never loaded: save them as safetensors"
            if pickled
            else ""
        )
    absent = [name for name in indexed(folder) if not (folder / name).is_file()]
    if absent:
        return f"it lacks {', '.join(absent)}, which {INDEX} names"
    if tokenizer and not any((folder / name).is_file() for name in TOKENIZERS):
        return f"it has no tokenizer (none of {', '.join(TOKENIZERS)})"
    return None


def check_folder(folder: Path, tokenizer: bool = True) -> None:
    """Check that a model can be loaded from the folder.

    Raises:
        InputError: a file is missing, `config.json` is not JSON, or a safetensors file is damaged.
    """
    if lack := missing_from(folder, tokenizer):
        raise InputError(f"checkpoint {folder} cannot be used: {lack}")
    read_json(folder / CONFIG)
    for name in indexed(folder) or sorted(path.name for path in folder.glob("*.safetensors")):
        _check_safetensors(folder / name)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; InputError if it holds anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object")
    return content


def provenance(folder: Path) -> dict[str, object]:
    """The provenance of the weights in an opened folder, for a record.

    Returns:
        `source` (`folder`, `hub`, `wheel`), `detail`, `dequantized`, `content` (hash of all files), and for a
        converted GGUF file also its `sha256`, the `stored` precision and the package `versions` used.
    """
    if (folder / PROVENANCE).is_file():
        return {name: value for name, value in read_json(folder / PROVENANCE).items() if name not in OURS}
    parts = folder.parts
    is_snapshot = len(parts) > 2 and parts[-2] == "snapshots" and parts[-3].startswith("models--")
    detail = f"{parts[-3][8:].replace('--', '/')}@{parts[-1]}" if is_snapshot else str(folder)
    source = "hub" if is_snapshot else "folder"
    return {"source": source, "detail": detail, "dequantized": False, "content": content_hash(folder)}


def is_whole(folder: Path) -> bool:
    """Whether a converted folder has all files with the sizes and the digest in `repro.json`.

    That file is written last. Folders of before it had the digest count by their sizes.
    """
    if not (folder / PROVENANCE).is_file():
        return False
    try:
        noted = read_json(folder / PROVENANCE)
        files = noted.get("files", {})
        there = all((folder / name).stat().st_size == size for name, size in files.items())
        return bool(files) and there and noted.get("digest") in (None, digest(folder))
    except (InputError, OSError, AttributeError):
        return False


def content_hash(folder: Path) -> str:
    """Hash of names and contents of the folder's files, without subfolders, hidden files and `repro.json`."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name != PROVENANCE and not path.name.startswith("."):
            digest.update(f"{path.name} {_file_hash(path)}\n".encode())
    return digest.hexdigest()


def _file_hash(path: Path) -> str:
    """SHA-256 of a file; taken from the file name for large files in the hub's cache."""
    blob = path.resolve().name
    is_named = path.is_symlink() and len(blob) == 64 and set(blob) <= set("0123456789abcdef")
    return blob if is_named else sha256_of(path)


def indexed(folder: Path) -> list[str]:
    """The weight files listed in the index; empty if there is no index."""
    if not (folder / INDEX).is_file():
        return []
    named = read_json(folder / INDEX).get("weight_map", {})
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise InputError(f"{folder / INDEX} is damaged: its weight_map must map tensors to files")
    if outside := [name for name in named.values() if Path(name).name != name]:
        raise InputError(f"{folder / INDEX} names {outside[0]!r}, which is not in its folder")
    return sorted(set(named.values()))


def _check_safetensors(path: Path) -> None:
    """InputError unless the header parses and matches the file size; detects truncated downloads early."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:
            raise InputError(
                f"{path} is corrupt: {size} bytes, but its header alone should take {length + 8}"
            )
        try:
            header = json.loads(stream.read(length))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is corrupt: its header does not parse ({error})") from error
    wanted = 8 + length + max(ends, default=0)
    if size != wanted:
        raise InputError(f"{path} is corrupt: {size} bytes, its header asks for {wanted}")
