"""Cell keys: settings, content hashes of inputs, and component versions.

Owns the versions of components and the removal of machine-specific paths. Must not know which components
exist. The hash of the source code is provenance and not part of a key.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from repro.core.remembered import remember
from repro.records.record import canonical

RUN_SETTINGS = ("data_dir", "results", "outputs", "sweep", "wandb")
"""Settings about folders and the command itself; not stored in records."""

PROSE_KEYS = frozenset({"source", "note", "soc", "product", "papers", "holds", "fitted_to"})
"""Entries of a device file that explain its numbers or say where they hold; not part of keys."""

PREFIXED_PATH = re.compile(r"[a-z]+:[~/.]")
"""A place behind a word, as in `evaluate:/home/me/mine`."""
ABSOLUTE_PATH = re.compile(r"(?:(?<=file://)|(?<![\w.~/-]))/(?:[\w.+-]+/)+([\w.+-]+)")
"""An absolute path of at least two parts; the group is the last part."""

SOURCE_KEYS = frozenset({"file", "hub", "wheel", "licence"})
"""Entries of a dataset about its sources; not part of keys, since the examples have their own digest."""


@runtime_checkable
class ReadsFiles(Protocol):
    """A component that reads files beyond the cell's inputs."""

    def inputs(self) -> Mapping[str, str]:
        """Their content hashes by name."""
        ...


def files_read(component: object) -> dict[str, str]:
    """Content hashes of the files that a component reads itself; empty for most."""
    return dict(component.inputs()) if isinstance(component, ReadsFiles) else {}


def version_of(component: type) -> int:
    """The version of a registered class: the sum of the `version` fields of the class and its bases.

    Raising a base's version therefore raises all its subclasses. A class without any has version 1.
    """
    return sum(int(vars(cls).get("version", 0)) for cls in component.__mro__) or 1


def cell_key(asked: Mapping[str, Any], inputs: Mapping[str, str], versions: Mapping[str, int]) -> str:
    """The key of a cell.

    Args:
        asked: the settings that can change the outcome.
        inputs: content hashes of the cell's inputs.
        versions: versions of the components that decide the outcome, by name.
    """
    sections = ",".join(f"{canonical(name)}:{_canonical(asked[name])}" for name in sorted(asked))
    text = f'{{"asked":{{{sections}}},"inputs":{canonical(inputs)},"versions":{canonical(versions)}}}'
    return hashlib.sha256(text.encode()).hexdigest()


_canonical = remember(1024)(canonical)
"""Cells of a sweep have most sections in common."""


@remember(64)
def device_asked(device: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a device file that can change an outcome: all but `PROSE_KEYS`."""
    settings: dict[str, Any] = _without(device, PROSE_KEYS)
    return settings


def dataset_asked(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """The part of dataset settings that can change an outcome: all but `SOURCE_KEYS` and the task's score.

    A cell that asks for the task's score has it in its key beside the dataset. `spread` came after keys were
    made, so it is left out where it is null.
    """
    settings: dict[str, Any] = _without(dataset, SOURCE_KEYS)
    if settings.get("spread") is None:
        settings.pop("spread", None)
    scoring = settings.get("scoring")
    if isinstance(scoring, Mapping):
        settings["scoring"] = {name: value for name, value in scoring.items() if name != "score"}
    return settings


def model_asked(model: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model without its checkpoint, which enters the key as a content hash."""
    return {name: value for name, value in model.items() if name != "checkpoint"}


def _without(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _without(inner, names) for name, inner in value.items() if name not in names}
    return value


def portable(config: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved configuration as stored in records, without machine-specific folders.

    Absolute paths are reduced to their last part, which is searched under $REPRO_MODELS. Nobody changes it.
    """
    return {name: _portable(value) for name, value in config.items() if name not in RUN_SETTINGS}


@remember(1024)
def _portable(section: Any) -> Any:
    return _without_places(section)


@lru_cache(maxsize=10_000)
def portable_place(text: str) -> str:
    """A text that is a place of this machine as its last part, also behind a word (`evaluate:/home/me`)."""
    prefix, colon, path = text.rpartition(":") if PREFIXED_PATH.match(text) else ("", "", text)
    return f"{prefix}{colon}{Path(path).name}" if _is_place(path) else text


def portable_override(override: str) -> str:
    """An override of the command line without machine-specific folders, as `portable`, also in lists."""
    return "".join(
        Path(part).name if _is_place(part) else part for part in re.split(r"([,=:\[\]{}'\"]\s*)", override)
    )


def short_places(texts: Iterable[str]) -> dict[str, str]:
    """Each text that is a path of this machine, with as few of its last parts as tell them apart."""
    path_parts = {text: Path(text).parts[text.startswith("/") :] for text in texts if _is_place(text)}
    short_texts: dict[str, str] = {}
    for count in range(1, max(map(len, path_parts.values()), default=0) + 1):
        short_texts = {text: "/".join(names[-count:]) for text, names in path_parts.items()}
        if len({*short_texts.values()}) == len(short_texts):
            break
    return short_texts


def shorten(text: str, short_texts: Mapping[str, str]) -> str:
    """A text with these places (`short_places`) and other absolute paths in it shortened."""
    for path in sorted(short_texts, key=len, reverse=True):
        text = text.replace(path, short_texts[path])
    return ABSOLUTE_PATH.sub(r"\1", text)


def portable_text(text: str) -> str:
    """A traceback or message without machine-specific folders.

    Module paths become relative to `sys.path`, and what lies in the home or working folder to `~` or `.`;
    other absolute paths are reduced to their last part.
    """
    for folder in sorted(filter(os.path.isabs, sys.path), key=len, reverse=True):
        text = text.replace(f"{folder.rstrip('/')}/", "")
    places = {str(Path.cwd()): ".", str(Path.home()): "~"}
    for folder, symbol in sorted(places.items(), key=lambda item: len(item[0]), reverse=True):
        if folder == "/":
            continue
        text = re.sub(rf"(?<![\w.~/-]){re.escape(folder)}(?![\w.-])", symbol, text)
    return ABSOLUTE_PATH.sub(r"\1", text)


def _is_place(text: str) -> bool:
    is_outside = Path(text).is_absolute() or text.startswith("~") or ".." in Path(text).parts
    return is_outside and "\n" not in text


def _without_places(value: Any) -> Any:
    """Nested mappings and lists with `portable_place` of every string."""
    if isinstance(value, Mapping):
        return {name: _without_places(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_places(inner) for inner in value]
    return portable_place(value) if isinstance(value, str) else value
