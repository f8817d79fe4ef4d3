"""What a cell's key is made of: what was asked, the content of its inputs, and versions of what decides.

Owns the versions of components and the removal of all that names a machine. Must not know which components
there are. The hash of the source code is no part of a key; it is provenance.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from repro.records.record import content_hash

OF_THE_RUN = ("data_dir", "results", "outputs", "sweep", "wandb")
"""Settings that say where things lie and what is shown: no part of a record."""

PROSE = frozenset({"source", "note", "soc", "papers"})
"""Entries of a device file that explain its numbers and change none."""

ABSOLUTE = re.compile(r"(?<![\w.~/-])/(?:[\w.+-]+/)+([\w.+-]+)")
"""An absolute path of at least two parts; its group is the last."""

PLACES = frozenset({"file", "hub", "wheel", "licence"})
"""Entries of a dataset that say where its rows are found: their content has a digest of its own."""


@runtime_checkable
class ReadsFiles(Protocol):
    """A component that reads files beside what a cell gives it."""

    def inputs(self) -> Mapping[str, str]:
        """Their content hashes by name."""
        ...


def files_read(component: object) -> dict[str, str]:
    """Content hashes of the files that a component reads by itself; none for most."""
    return dict(component.inputs()) if isinstance(component, ReadsFiles) else {}


def version_of(component: type) -> int:
    """The version of a registered class: the sum of the `version` fields of it and of its bases.

    A base class that is raised so raises all classes that share its code. A class without any has version 1.
    """
    return sum(int(vars(cls).get("version", 0)) for cls in component.__mro__) or 1


def cell_key(asked: Mapping[str, Any], inputs: Mapping[str, str], versions: Mapping[str, int]) -> str:
    """The identity of a cell.

    Args:
        asked: the settings that can change the outcome.
        inputs: content hashes of all that the cell is given.
        versions: of the components that decide the outcome, by name.
    """
    return content_hash({"asked": asked, "inputs": inputs, "versions": versions})


def device_asked(device: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a device file that can change an outcome: all but its explanations."""
    found: dict[str, Any] = _without(device, PROSE)
    return found


def dataset_asked(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a dataset's settings that can change an outcome: all but the places of its rows."""
    found: dict[str, Any] = _without(dataset, PLACES)
    return found


def model_asked(model: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a model's settings that can change an outcome: its checkpoint counts by its content."""
    return {name: value for name, value in model.items() if name != "checkpoint"}


def _without(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _without(below, names) for name, below in value.items() if name not in names}
    return value


def portable(config: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved configuration as a record keeps it: without a folder of the machine.

    Of an absolute path the last part stays, which is looked for under $REPRO_MODELS.
    """
    kept = {name: value for name, value in config.items() if name not in OF_THE_RUN}
    found: dict[str, Any] = _strings(kept, lambda text: Path(text).name if _is_place(text) else text)
    return found


def portable_text(text: str) -> str:
    """A traceback or a message without folders of the machine: a module's path begins at its package, of any
    other absolute path the last part stays."""
    for folder in sorted(filter(os.path.isabs, sys.path), key=len, reverse=True):
        text = text.replace(f"{folder.rstrip('/')}/", "")
    return ABSOLUTE.sub(r"\1", text)


def _is_place(text: str) -> bool:
    return Path(text).is_absolute() and "\n" not in text


def _strings(value: Any, change: Callable[[str], str]) -> Any:
    """A structure of mappings and lists with every text changed."""
    if isinstance(value, Mapping):
        return {name: _strings(below, change) for name, below in value.items()}
    if isinstance(value, list | tuple):
        return [_strings(below, change) for below in value]
    return change(value) if isinstance(value, str) else value
