"""Reads a YAML file that is a mapping, under limits of size and depth. Must not know what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from repro.core.errors import InputError
from repro.core.reading import DEEPEST, MB, read_text

YAML_BYTES = 4 * MB
"""Largest file: a second of parsing."""
NODES = 100_000
"""Most values of a file, those that aliases repeat counted each time."""

_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def read_mapping(path: Path) -> dict[str, Any]:
    """The content of a YAML file; empty for an empty file.

    Raises:
        InputError: it is too large or not YAML, or not a mapping.
    """
    content = parse_yaml(read_yaml(path), path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(f"{path} must be a mapping and is {content!r}")
    return {str(key): value for key, value in content.items()}


def read_yaml(path: Path) -> str:
    """The text of a YAML file; InputError if it is none, or too large."""
    try:
        return read_text(path, YAML_BYTES)
    except UnicodeDecodeError as wrong:
        raise InputError(f"{path} is not YAML: {wrong}") from wrong


def parse_yaml(text: str, path: Path | str, loader: Any = _LOADER) -> Any:
    """What the text of a YAML file says, as plain data.

    Raises:
        InputError: it is not YAML, has a tag, or is nested or repeats itself too much.
    """
    try:
        _require_bounds(text, loader)
        return yaml.load(text, Loader=loader)
    except (ValueError, RecursionError, yaml.YAMLError) as wrong:
        raise InputError(f"{path} is not YAML: {' '.join(str(wrong).split())}") from wrong


def _require_bounds(text: str, loader: Any) -> None:
    """YAMLError for YAML that is nested too deeply, or whose aliases make it too large or endless."""
    sizes: dict[str | None, int] = {}
    opened: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in opened):
                raise yaml.YAMLError(f"the alias *{event.anchor} is inside of what it repeats")
            total += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.NodeEvent):
            total += 1
            if isinstance(event, yaml.CollectionStartEvent):
                opened.append((event.anchor, total))
            elif event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor:
                sizes[anchor] = total - before + 1
        if len(opened) > DEEPEST:
            raise yaml.YAMLError(f"it is nested deeper than {DEEPEST} levels")
        if total > NODES:
            raise yaml.YAMLError(f"it has more than {NODES} values, its aliases written out")
