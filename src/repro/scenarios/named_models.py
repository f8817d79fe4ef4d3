"""Read models of `conf/model` by name, for services that use models beside the run's target.

Owns reading these files without Hydra. Must not know its callers.
"""

from __future__ import annotations

from typing import Any

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.registry import unknown
from repro.core.yaml_file import read_mapping
from repro.models.runtime.model import ModelConfig


def read_model(name: str) -> ModelConfig:
    """The model of `conf/model/<name>.yaml`, with the checkpoint and shape of its defaults list.

    Raises:
        InputError: there is no such model (with near misses), or its file is invalid.
    """
    folder = conf_dir() / "model"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        raise InputError(unknown("model", name, [found.stem for found in folder.glob("*.yaml")]))
    content: dict[str, Any] = read_mapping(path)
    parts = [part for part in content.pop("defaults", []) if isinstance(part, dict)]
    named = {group: choice for part in parts for group, choice in part.items()}
    read = {group: read_mapping(folder / group / f"{choice}.yaml") for group, choice in named.items()}
    return ModelConfig.parse({"checkpoint": None, "shape": None} | read | content)
