"""Read models of `conf/model` by name, for services that use models beside the run's target.

Owns reading these files without Hydra. Must not know its callers.
"""

from __future__ import annotations

import re
from typing import Any

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.registry import unknown
from repro.core.yaml_file import parse_yaml, read_mapping, read_yaml
from repro.models.runtime.model import ModelConfig

OWN_OR = re.compile(r"\$\{own_or:[^,{}]*,([^{}]*)\}")
"""What depends on `weights` in a model's file; the group is the stand-in's part."""


def read_model(name: str) -> ModelConfig:
    """The model of `conf/model/<name>.yaml`, with the checkpoint and shape of its defaults list.

    If another checkpoint computes in its place, it is that one.

    Raises:
        InputError: there is no such model (with near misses), or its file is invalid.
    """
    folder = conf_dir() / "model"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        raise InputError(unknown("model", name, [found.stem for found in folder.glob("*.yaml")]))
    content: dict[str, Any] = parse_yaml(OWN_OR.sub(r"\1", read_yaml(path)), str(path))
    parts = [part for part in content.pop("defaults", []) if isinstance(part, dict)]
    named = {group: choice for part in parts for group, choice in part.items()}
    read = {group: read_mapping(folder / group / f"{choice}.yaml") for group, choice in named.items()}
    return ModelConfig.parse({"checkpoint": None, "shape": None} | read | content)
