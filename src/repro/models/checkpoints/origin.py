"""A checkpoint's description from YAML: its name and sources.

Owns the validation of the description and the search for a local folder. Must not know how other sources are
accessed; `checkpoint` does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from repro.core.errors import InputError
from repro.core.paths import conf_dir, project_root
from repro.core.reading import read_mapping
from repro.core.typed import typed
from repro.models.checkpoints.weight_files import CONFIG_FILE
from repro.models.checkpoints.wheels import Wheel

MODELS_VARIABLE = "REPRO_MODELS"
Text = Annotated[str, MinLen(1)]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
"""Files of which a folder has one if it has a tokenizer that can be read."""
TOKENIZER_PATTERNS = ("tokenizer*", "*.model", "vocab.*", "merges.txt", "tekken.json", "*.tiktoken", "*.spm")
"""Patterns of all files of tokenizers. A folder without any has none: a draft's is its target's then."""
REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(?<!\.gguf)")
"""A repository of the hub, such as `Qwen/Qwen3-0.6B`."""


@dataclass(frozen=True)
class Hub:
    """A hub repository; `revision` is a branch, tag, `refs/pr/N` or commit, None for the main branch."""

    repo: Text
    revision: Text | None


@dataclass(frozen=True)
class Checkpoint:
    """A model's name and the sources of its weights.

    Attributes:
        name: also the name of its YAML file and the start of its folder's name in the cache.
        folder: a local folder or GGUF file; a relative path is searched as in `folders`. None searches
            $REPRO_MODELS only, by name and by repository.
        hub: the hub repository, or None.
        wheel: the packages that contain a GGUF file of it, or None.
        files: the packages that contain its folder's files as they are, by the files' names, or None.
        store: precision of a GGUF file's dequantized weights on disk, `float32` (exact) or `bfloat16` (half
            the size, 8 significant bits).
        shares_embeddings_with: name of the checkpoint whose embeddings and tokenizer this one uses, or None;
            its own folder then needs no tokenizer.
        licence: its licence, for information only.
        predictor: folder of its early-exit predictor, searched like `folder`; None if there is none.
    """

    name: Text
    folder: Text | None
    hub: Hub | None
    wheel: Wheel | None
    store: Literal["float32", "bfloat16"]
    shares_embeddings_with: Text | None
    licence: Text
    predictor: Text | None = None
    files: Mapping[str, Wheel] | None = None

    def __post_init__(self) -> None:
        if Path(self.name).name != self.name:  # it names files in the cache
            raise InputError(f"checkpoint.name is {self.name!r}; it must be a name without folders")

    @staticmethod
    def from_mapping(mapping: Mapping[str, Any]) -> Checkpoint:
        """From a mapping in YAML or a resolved config; InputError for missing, unknown or invalid keys."""
        return typed(Checkpoint, mapping, "checkpoint")

    @staticmethod
    def from_yaml(path: Path) -> Checkpoint:
        """From a file in `conf/model/checkpoint/`."""
        return Checkpoint.from_mapping(read_mapping(path))


def checkpoint_files() -> dict[str, Path]:
    """The files in `conf/model/checkpoint/`, by name."""
    return {path.stem: path for path in sorted((conf_dir() / "model" / "checkpoint").glob("*.yaml"))}


def find_local(checkpoint: Checkpoint) -> Path | None:
    """The local folder or GGUF file, or None.

    Raises:
        InputError: `checkpoint.folder` is set and does not exist; other weights must not silently replace it.
    """
    candidates = local_paths(checkpoint)
    path = next((candidate for candidate in candidates if candidate.exists()), None)
    if path is None and checkpoint.folder is not None:
        searched_paths = ", ".join(map(str, candidates))
        raise InputError(
            f"checkpoint {checkpoint.name}: folder {checkpoint.folder!r} is not there"
            f"{to_install(checkpoint.folder) or f'; tried {searched_paths}'}"
        )
    return path


def local_paths(checkpoint: Checkpoint) -> list[Path]:
    """Candidate paths of a local copy, in search order."""
    if checkpoint.folder is not None:
        return folders(checkpoint.folder)
    names = [checkpoint.name]
    if checkpoint.hub is not None:
        names += [checkpoint.hub.repo, checkpoint.hub.repo.rpartition("/")[2]]
    return [base / name for base in _shelf() for name in names]


def folders(folder: str) -> list[Path]:
    """Candidate paths of a folder: absolute, or below $REPRO_MODELS, the project or the working directory."""
    return [base / Path(folder).expanduser() for base in (*_shelf(), project_root(), Path.cwd())]


def to_install(folder: str) -> str:
    """How to get a folder that is not there, if it is one of the project's assets."""
    return "; `pip install 'repro[assets]'` brings it" if folder.startswith("assets/") else ""


def model_file(text: str) -> dict[str, Any] | None:
    """The content of a model file for weights that people bring; `None` if the text names none.

    Args:
        text: a folder of safetensors, a GGUF file (both searched as in `folders`), or `org/repo` on the hub.
    """
    path = next((path for path in folders(text) if (path / CONFIG_FILE).is_file() or _is_gguf(path)), None)
    if path is None and not REPOSITORY.fullmatch(text):
        return None
    has_tokenizer = path is None or _is_gguf(path) or any(any(path.glob(name)) for name in TOKENIZER_PATTERNS)
    name = Path(text).name.removesuffix(".gguf")
    checkpoint = {
        "name": name,
        "folder": str(path) if path else None,
        "hub": None if path else {"repo": text, "revision": None},
        "wheel": None,
        "store": "float32",
        "shares_embeddings_with": None if has_tokenizer else "its target",
        "licence": "its own",
    }
    return {"name": name, "checkpoint": checkpoint, "shape": None, "precision": None, "dtype": "float32"}


def _is_gguf(path: Path) -> bool:
    return (path.suffix == ".gguf" and path.is_file()) or any(path.glob("*.gguf"))


def _shelf() -> list[Path]:
    models = os.environ.get(MODELS_VARIABLE)
    return [Path(models).expanduser()] if models else []
