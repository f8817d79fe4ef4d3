"""Reads a YAML file that is a mapping. Must not know what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from repro.core.errors import InputError


def read_mapping(path: Path) -> dict[str, Any]:
    """The content of a YAML file; empty for an empty file.

    Raises:
        InputError: it is not YAML, or not a mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except (yaml.YAMLError, UnicodeDecodeError) as wrong:
        raise InputError(f"{path} is not YAML: {' '.join(str(wrong).split())}") from wrong
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(f"{path} must be a mapping and is {content!r}")
    return {str(key): value for key, value in content.items()}


_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
