"""The labels that a grid's cells will have, read from their settings without composing them.

Owns the correspondence of settings and labels. A label that it cannot tell is left out, and the table then
takes it from the records. Must not know records or tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from repro.core.reading import read_mapping
from repro.reports.spec.grid import Point

LABEL_OF = {
    "method": "method",
    "device": "device",
    "dataset": "dataset",
    "model@target": "target",
    "model@draft": "draft",
    "compression": "compression",
    "service": "service",
    "probe": "probe",
    "service.decider": "decider",
    "trace": "trace",
}
"""The label that a setting determines."""

SETUP = "setup"
SETTING_PATTERN = re.compile(r"\$\{(?:oc\.select:|hydra:runtime\.choices\.)?([\w.@]+)(?:,[^}]*)?\}")
"""A setting in a label, such as `${method.alpha}`."""

Labels = Mapping[str, str]


def labels_of(
    points: Sequence[Point], defaults: Mapping[str, Any], content: Mapping[str, Any], folders: Sequence[Path]
) -> list[Labels]:
    """The labels of each cell.

    Args:
        points: settings of the cells.
        defaults: choices that all cells share, by setting (`method`, `model@target`).
        content: the experiment file's top level: `labels`, and settings that a label may name.
        folders: `conf/` folders.
    """
    return [_labels(point, defaults, content, tuple(folders)) for point in points]


def defaults_of(content: Mapping[str, Any]) -> dict[str, str]:
    """The choices in a file's `defaults:` list, by setting: `override /method: sp` is `method`."""
    choices: dict[str, str] = {}
    for entry in content.get("defaults") or ():
        if isinstance(entry, Mapping):
            for key, value in entry.items():
                choices[str(key).removeprefix("override ").strip().lstrip("/")] = str(value)
    return choices


def _labels(
    point: Point, defaults: Mapping[str, Any], content: Mapping[str, Any], folders: tuple[Path, ...]
) -> Labels:
    choices: dict[str, Any] = {}
    labels: dict[str, str] = {}
    setup = point.get(SETUP, defaults.get(SETUP))
    if setup is not None:
        setup_file = _file(folders, SETUP, str(setup))
        choices |= defaults_of(setup_file)
        labels |= {str(name): str(value) for name, value in (setup_file.get("labels") or {}).items()}
    overrides = {name.lstrip("+"): value for name, value in point.items()}
    choices |= {name: value for name, value in defaults.items() if name != SETUP} | overrides
    for setting, label in LABEL_OF.items():
        if setting in choices:
            labels[label] = _name(folders, setting.partition("@")[0], str(choices[setting]))
    for name, value in (content.get("labels") or {}).items():
        text = _fill(str(value), choices, content)
        if text is not None:
            labels[str(name)] = text
    labels |= {
        name.removeprefix("labels."): str(v) for name, v in overrides.items() if name.startswith("labels.")
    }
    return labels


def _fill(label: str, choices: Mapping[str, Any], content: Mapping[str, Any]) -> str | None:
    """The label with its settings filled in; None if one of them cannot be told."""
    values = {name: _setting(name, choices, content) for name in SETTING_PATTERN.findall(label)}
    if None in values.values() or label.count("${") != len(SETTING_PATTERN.findall(label)):
        return None
    return SETTING_PATTERN.sub(lambda match: str(values[match[1]]), label)


def _setting(name: str, choices: Mapping[str, Any], content: Mapping[str, Any]) -> str | None:
    """A setting as text, from the cell's choices or the experiment's file; None if neither has it."""
    if name in choices:
        return "" if choices[name] is None else str(choices[name])
    value: Any = content
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if value is None or isinstance(value, Mapping) else str(value)


def _name(folders: tuple[Path, ...], group: str, choice: str) -> str:
    """The name that a choice's file gives it, or one of the files that it extends; else the choice."""
    content = _file(folders, group, choice)
    if "name" in content:
        return str(content["name"])
    for parent in content.get("defaults") or ():
        if isinstance(parent, str) and parent != "_self_":
            return _name(folders, group, parent)
    return choice


@cache
def _file(folders: tuple[Path, ...], group: str, choice: str) -> Mapping[str, Any]:
    for folder in folders:
        path = folder / group / f"{choice}.yaml"
        if path.is_file():
            return read_mapping(path)
    return {}
