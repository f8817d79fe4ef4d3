"""Changes numbers in the text of a device or engine file, and leaves its comments and layout alone."""

from __future__ import annotations

from pathlib import Path

import yaml

from repro.core.errors import InputError
from workshop.fitting.specification import POINT


def changed_text(text: str, at: str, value: float, digits: int = 3) -> str:
    """The text of a YAML file with another number at a place.

    Raises:
        InputError: there is no number at the place.
    """
    match = POINT.fullmatch(at)
    place, point = (match[1], int(match[2])) if match else (at, None)
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in (*place.split("."), "value" if point is None else "points"):
        node = _child(node, key, at)
    if point is not None:
        if not isinstance(node, yaml.SequenceNode):
            raise InputError(f"{at}: points is no list")
        node = node.value[point].value[1]
    if not isinstance(node, yaml.ScalarNode):
        raise InputError(f"{at}: there is no number")
    start, end = node.start_mark.index, node.end_mark.index
    return f"{text[:start]}{value:.{digits}g}{text[end:]}"


def _child(node: yaml.Node | None, key: str, at: str) -> yaml.Node:
    if isinstance(node, yaml.MappingNode):
        for name, child in node.value:
            if name.value == key:
                return child  # type: ignore[no-any-return]
    raise InputError(f"{at}: there is no {key!r}")


def write_number(path: Path, at: str, value: float) -> None:
    """Change a number of a file to three digits."""
    path.write_text(changed_text(path.read_text(encoding="utf-8"), at, value), encoding="utf-8")
