"""The content hash of a folder of weights: what its files say, and not who wrote them.

Owns what counts as content, and the notes that spare a second reading. Must not know what tensors are for.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from repro.core.errors import InputError
from repro.records.record import content_hash

DIGESTS = ".digests.json"
FORM = 2
"""Of the notes in `.digests.json`; others are made anew."""
TENSORS = ".safetensors"
OUR_NOTES = "repro.json"
VOLATILE = frozenset(
    {
        "local_files_only",
        "transformers_version",
        "_name_or_path",
        "name_or_path",
        "_model_name_or_path",
        "is_local",
    }
)
"""Entries of JSON files in which packages note themselves, a switch, or where they found something."""
BLOCK = 1 << 24
"""Bytes that are hashed at once."""


def digest(folder: Path | str) -> str:
    """SHA-256 in hex over what a folder's files say: tensors, configuration, vocabulary, and whatever else.

    What a package writes into them about itself does not count (`VOLATILE`, the metadata and the order of a
    safetensors file, `repro.json`), so that the same weights have one digest wherever and by whichever
    version they were converted. Hidden files and texts for people (`*.md`) do not count either.

    Each file's hash is kept in the folder's `.digests.json` with its size and modification time, and computed
    again when either changed.
    """
    folder = Path(folder)
    files = sorted(path for path in folder.iterdir() if _counts(path))
    if not files:
        raise InputError(f"{folder} holds no files to hash")
    known = _known_digests(folder / DIGESTS)
    fresh = {path.name: _file_digest(path, known.get(path.name)) for path in files}
    if fresh != known:
        _remember(folder / DIGESTS, fresh)
    weights = sorted({one for path in files if path.suffix == TENSORS for one in fresh[path.name][2]})
    others = [f"{path.name}\0{fresh[path.name][2]}" for path in files if path.suffix != TENSORS]
    return hashlib.sha256("\n".join([*weights, *others]).encode()).hexdigest()


def _counts(path: Path) -> bool:
    """Whether a file's content is part of its folder's digest; an index only names tensors that are."""
    hidden = path.name.startswith(".") or path.name in (OUR_NOTES, "model.safetensors.index.json")
    return path.is_file() and not hidden and path.suffix != ".md"


def _file_digest(path: Path, known: list[Any] | None) -> list[Any]:
    """Size in bytes, modification time in ns, and the digest of one file; of tensors one for each."""
    stat = path.stat()
    if known is not None and known[:2] == [stat.st_size, stat.st_mtime_ns]:
        return known
    return [stat.st_size, stat.st_mtime_ns, _content(path)]


def _content(path: Path) -> str | list[str]:
    if path.suffix == TENSORS:
        return _tensor_digests(path)
    if path.suffix == ".json":
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path} is not valid JSON: {error}") from error
        return content_hash(_lasting(found))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tensor_digests(path: Path) -> list[str]:
    """Of each tensor of a safetensors file its name, type, shape and the SHA-256 of its bytes."""
    found = []
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise InputError(f"{path} is not a whole safetensors file: {error}") from error
        header.pop("__metadata__", None)
        for name, about in header.items():
            begin, end = about["data_offsets"]
            file.seek(8 + length + begin)
            whole = hashlib.sha256()
            for left in range(end - begin, 0, -BLOCK):
                whole.update(file.read(min(BLOCK, left)))
            found.append(f"{name} {about['dtype']} {about['shape']} {whole.hexdigest()}")
    return sorted(found)


def _lasting(value: Any) -> Any:
    """JSON without what a package's version or a machine's switches wrote into it."""
    if isinstance(value, dict):
        return {name: _lasting(below) for name, below in value.items() if name not in VOLATILE}
    return [_lasting(each) for each in value] if isinstance(value, list) else value


def _known_digests(path: Path) -> dict[str, list[Any]]:
    """What was noted of a folder's files; nothing where the note is damaged or of an older form."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict) or found.pop("form", None) != FORM:
        return {}
    return {name: noted for name, noted in found.items() if isinstance(noted, list) and len(noted) == 3}


def _remember(path: Path, digests: dict[str, list[Any]]) -> None:
    """Write the hashes whole; a folder that is read-only is hashed anew each time, which is only slower."""
    if not os.access(path.parent, os.W_OK):
        return
    with NamedTemporaryFile("w", dir=path.parent, prefix=DIGESTS, delete=False, encoding="utf-8") as file:
        json.dump({"form": FORM, **digests}, file)
    Path(file.name).replace(path)
