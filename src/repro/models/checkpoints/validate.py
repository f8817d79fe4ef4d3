"""A checkpoint's folder: what it must hold before a model is opened from it, and where it came from.

Owns the check of its files and their hash. Must not know how a folder is made, or what its tensors say.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.models.checkpoints.wheels import sha256_of

CONFIG = "config.json"
PROVENANCE = "repro.json"
INDEX = "model.safetensors.index.json"
MEDUSA = "medusa_lm_head.pt"
"""Medusa's public heads: tensors alone, which torch's loader reads without running code of the file."""

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")


def missing_from(folder: Path, tokenizer: bool = True) -> str | None:
    """What the folder lacks, as half a sentence, or None when every file is there.

    Args:
        folder: an existing folder.
        tokenizer: whether it must hold a tokenizer.
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
    absent = [name for name in _shards(folder) if not (folder / name).is_file()]
    if absent:
        return f"it lacks {', '.join(absent)}, which {INDEX} names"
    if tokenizer and not any((folder / name).is_file() for name in TOKENIZERS):
        return f"it has no tokenizer (none of {', '.join(TOKENIZERS)})"
    return None


def check_folder(folder: Path, tokenizer: bool = True) -> None:
    """Raise an InputError unless a model can be opened from the folder.

    Raises:
        InputError: a file is absent, `config.json` is not JSON, or a safetensors file is cut or corrupt.
    """
    if lack := missing_from(folder, tokenizer):
        raise InputError(f"checkpoint {folder} cannot be used: {lack}")
    read_json(folder / CONFIG)
    for name in _shards(folder) or sorted(path.name for path in folder.glob("*.safetensors")):
        _check_safetensors(folder / name)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; InputError if the file holds something else."""
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object")
    return content


def provenance(folder: Path) -> dict[str, object]:
    """Where the weights in an opened folder come from, for a record.

    Returns:
        `source` (`folder`, `hub`, `wheel`), `detail`, `dequantized`, `content` (hash of all files), and for a
        converted GGUF file also its `sha256`, the precision `stored` and the `versions` that converted it.
    """
    if (folder / PROVENANCE).is_file():
        return {name: value for name, value in read_json(folder / PROVENANCE).items() if name != "files"}
    parts = folder.parts
    is_snapshot = len(parts) > 2 and parts[-2] == "snapshots" and parts[-3].startswith("models--")
    detail = f"{parts[-3][8:].replace('--', '/')}@{parts[-1]}" if is_snapshot else str(folder)
    source = "hub" if is_snapshot else "folder"
    return {"source": source, "detail": detail, "dequantized": False, "content": content_hash(folder)}


def is_whole(folder: Path) -> bool:
    """Whether a converted folder has every file at the size that was written: the mark is written last."""
    if not (folder / PROVENANCE).is_file():
        return False
    files = read_json(folder / PROVENANCE).get("files", {})
    return bool(files) and all(
        (folder / name).is_file() and (folder / name).stat().st_size == size for name, size in files.items()
    )


def content_hash(folder: Path) -> str:
    """Hash of the names and contents of all files that lie in the folder itself."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name != PROVENANCE:
            digest.update(f"{path.name} {_file_hash(path)}\n".encode())
    return digest.hexdigest()


def _file_hash(path: Path) -> str:
    """The hub's cache names a big file by its sha256, so that it need not be read again."""
    blob = path.resolve().name
    is_named = path.is_symlink() and len(blob) == 64 and set(blob) <= set("0123456789abcdef")
    return blob if is_named else sha256_of(path)


def _shards(folder: Path) -> list[str]:
    """The weight files that the index names; none when the folder has no index."""
    if not (folder / INDEX).is_file():
        return []
    return sorted(set(read_json(folder / INDEX).get("weight_map", {}).values()))


def _check_safetensors(path: Path) -> None:
    """The header parses and the file is as long as it says: a cut download fails here, not in a run."""
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
