"""The content hash of a checkpoint folder, independent of the software that wrote the files.

Owns what counts as content, and the cached hashes in `.digests.json`. Must not know what tensors are for.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.reading import JSON_BYTES, parse_json, read_bytes
from repro.libraries import torch
from repro.models.checkpoints.safetensors_io import open_safetensors
from repro.models.checkpoints.weight_files import INDEX_FILE, TENSORS_SUFFIX, header, index
from repro.records.record import content_hash, write_atomically

log = logging.getLogger(__name__)

DIGESTS_FILE = ".digests.json"
FORM_VERSION = 3
"""Format version of `.digests.json`; files of other versions are rebuilt."""
OUR_NOTES = "repro.json"
VOLATILE_KEYS = frozenset(
    {
        "local_files_only",
        "transformers_version",
        "_name_or_path",
        "name_or_path",
        "_model_name_or_path",
        "is_local",
    }
)
"""JSON keys that do not count as content: package versions, switches and paths."""


def digest(folder: Path | str) -> str:
    """SHA-256 in hex over the contents of a folder: tensors, configuration, vocabulary and other files.

    Not included: `VOLATILE_KEYS`, safetensors metadata and tensor order, `repro.json`, hidden files, `*.md`,
    and a tensor that the index of the folder takes from another file. So the same weights have the same
    digest wherever and with whichever package version they were converted.

    Each file's hash is cached in the folder's `.digests.json` with its size and the times of its last
    modification and last change, and recomputed when one of them changes. A program can set the former, but
    not the latter, so bytes that changed behind a kept modification time are found.
    """
    folder = Path(folder)
    files = sorted(path for path in folder.iterdir() if _counts(path))
    if not files:
        raise InputError(f"{folder} holds no files to hash")
    cached_digests = _cached_digests(folder / DIGESTS_FILE)
    digests = {path.name: _file_digest(path, cached_digests.get(path.name)) for path in files}
    if digests != cached_digests:
        _remember(folder / DIGESTS_FILE, digests)
    weight_map = index(folder)
    weights = sorted(
        {
            tensor
            for path in files
            if path.suffix == TENSORS_SUFFIX
            for tensor in digests[path.name][3]
            if weight_map.get(_name(tensor), path.name) == path.name
        }
    )
    other_files = [f"{path.name}\0{digests[path.name][3]}" for path in files if path.suffix != TENSORS_SUFFIX]
    return hashlib.sha256("\n".join([*weights, *other_files]).encode()).hexdigest()


def _counts(path: Path) -> bool:
    """Whether a file is part of the digest; the safetensors index is not, since its tensors are."""
    hidden = path.name.startswith(".") or path.name in (OUR_NOTES, INDEX_FILE)
    return path.is_file() and not hidden and path.suffix != ".md"


def _file_digest(path: Path, cached_entry: list[Any] | None) -> list[Any]:
    """Size in bytes, both times in ns, and digest of one file (a list, per tensor, for tensors)."""
    file_stat = path.stat()
    size_and_times = [file_stat.st_size, file_stat.st_mtime_ns, file_stat.st_ctime_ns]
    if cached_entry is not None and cached_entry[:3] == size_and_times:
        return cached_entry
    return [*size_and_times, _content(path)]


def _content(path: Path) -> str | list[str]:
    if path.suffix == TENSORS_SUFFIX:
        return _tensor_digests(path)
    if path.suffix == ".json":
        try:
            value = parse_json(read_bytes(path, JSON_BYTES))
        except ValueError as error:
            raise InputError(f"{path} is not valid JSON: {error}") from error
        return content_hash(_lasting(value))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tensor_digests(path: Path) -> list[str]:
    """Name, dtype, shape and SHA-256 of each tensor in a safetensors file."""
    lines = []
    with open_safetensors(path) as file:
        for name, tensor in header(path).items():
            content = hashlib.sha256(file.get_tensor(name).reshape(-1).view(torch.uint8).numpy())
            lines.append(f"{name} {tensor.kind} {list(tensor.shape)} {content.hexdigest()}")
    return sorted(lines)


def _name(tensor: str) -> str:
    """The tensor's name in one line of `_tensor_digests`."""
    return tensor.rpartition(" [")[0].rpartition(" ")[0]


def _lasting(value: Any) -> Any:
    """A JSON value without its `VOLATILE_KEYS` keys."""
    if isinstance(value, dict):
        return {name: _lasting(child) for name, child in value.items() if name not in VOLATILE_KEYS}
    return [_lasting(item) for item in value] if isinstance(value, list) else value


def _cached_digests(path: Path) -> dict[str, list[Any]]:
    """The cached hashes of a folder's files; empty if the cache is damaged or of another version."""
    if not path.exists():
        return {}
    try:
        entries = parse_json(path.read_text(encoding="utf-8"))
        if entries.pop("form") != FORM_VERSION:
            return {}
        if entries.pop("sha256") == content_hash(entries):
            return dict(entries)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as wrong:
        log.info("%s: %s", path, wrong)
    log.warning("%s is damaged; the hashes of its folder are computed again", path)
    return {}


def _remember(path: Path, digests: dict[str, list[Any]]) -> None:
    """Write the hashes atomically; no effect where none can be written: they are then computed each time."""
    try:
        write_atomically(path, json.dumps({"form": FORM_VERSION, "sha256": content_hash(digests), **digests}))
    except OSError as wrong:
        log.info("hashes of %s are not kept: %s", path.parent, wrong)
