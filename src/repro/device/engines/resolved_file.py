"""The one file that a device, its chip and an engine come to, and where each of its numbers stands.

Owns the text of that file. Must not know cells; that they bill the same numbers is a test's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from repro.core.paths import conf_folders, project_root
from repro.device.device_file import FACT_SECTIONS, is_fact
from repro.device.engines.engine_file import (
    EXTENDS,
    FORMAT,
    PROGRAMS,
    PUBLIC,
    chip_file,
    chip_name,
    chip_of,
    device_file,
    device_files,
    engine_files,
    engine_of,
    read_engine,
    with_engine,
)
from repro.device.products import PRODUCTS_FILE, read_products

CHIP_KEYS = ("soc", "chip")
"""Entries by which engines know a device: without them a file is used with its own numbers."""

LONG = 1_000_000
"""A width at which no line is broken."""


def resolved(device: str, engine: str) -> dict[str, Any]:
    """What a device file would say that gives the figures of a device with an engine by itself.

    Args:
        device: name of a device or a product.
        engine: name of an engine.

    Raises:
        InputError: there is none of that name, or as `with_engine`.
    """
    contents = device_file(device)
    used = engine_of(contents, read_engine(engine))
    described = with_engine(contents, used)
    named: dict[str, Any] = {key: value for key, value in described.items() if key not in CHIP_KEYS}
    if format_name := (used or contents).get(FORMAT):
        named[FORMAT] = format_name
    words = {key: value for key, value in named.items() if key not in FACT_SECTIONS}
    return {**words, **named, "papers": []}  # words before numbers


def resolved_text(device: str, engine: str) -> str:
    """The text of that file: a comment says where each number stands.

    Raises:
        InputError: as `resolved`.
    """
    contents = resolved(device, engine)
    lines = [*_lines(contents, "", (), _places(device, engine))]
    return (
        f"# What cells with device={device} engine={engine} bill. As conf/device/NAME.yaml it gives\n"
        "# device=NAME equal figures, but for methods that name a program of their own, such as mlc_gpu.\n"
        + "".join(f"{line}\n" for line in lines)
    )


def _lines(
    node: Mapping[str, Any], indent: str, path: tuple[str, ...], places: Mapping[str, str]
) -> Iterator[str]:
    """A part of the file: each number on a line, with the file that it is from."""
    for key, value in node.items():
        if isinstance(value, Mapping) and value and not is_fact(value):
            yield f"{indent}{key}:"
            yield from _lines(value, f"{indent}  ", (*path, str(key)), places)
            continue
        text = yaml.safe_dump(value, sort_keys=False, default_flow_style=True, width=LONG)
        line = f"{indent}{key}: {text.strip().removesuffix('...').strip()}"
        unplaced = "the `traffic` of its engine" if key == "added" else ""
        place = places.get(_identity((*path, str(key)), value), unplaced) if is_fact(value) else ""
        yield f"{line}  # {place}" if place else line


def _identity(path: tuple[str, ...], fact: Mapping[str, Any]) -> str:
    """A number and its place, the same in a device file and in an engine, whose absolute rates are peaks."""
    renamed = {"rate": "peak", PROGRAMS: "engines"}
    return json.dumps([[renamed.get(part, part) for part in path], fact], sort_keys=True)


def _places(device: str, engine: str) -> dict[str, str]:
    """The file of each number of a device, its chip and its engines, the engines' before the device's."""
    contents = device_file(device)
    names = [engine, contents.get("engine"), *(chip_of(contents).get(PUBLIC) or {}).values()]
    engine_names = [str(name) for name in names if name]
    for name in engine_names:  # grows by what each extends
        if isinstance(base := read_engine(name).get(EXTENDS), str) and base not in engine_names:
            engine_names.append(base)
    parts: list[tuple[Path, Mapping[str, Any]]] = []
    for path, content in ((engine_files()[name], read_engine(name)) for name in engine_names):
        parts += [(path, part) for part in (content.get("devices") or {}).values()] + [(path, content)]
    if device in device_files():
        parts.append((device_files()[device], contents))
    for path in (folder / PRODUCTS_FILE for folder in conf_folders()):
        parts += [(path, read_products(path)[device].entries)] if device in read_products(path) else []
    if (chip := chip_file(chip_name(contents))) in device_files():
        parts.append((device_files()[chip], device_file(chip)))
    places: dict[str, str] = {}
    for path, part in parts:
        for identity in _identities(part, ()):
            places.setdefault(identity, _shown(path))
    return places


def _identities(node: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """The numbers of a part of a file."""
    for key, value in node.items():
        if is_fact(value):
            yield _identity((*path, str(key)), value)
        elif isinstance(value, Mapping):
            yield from _identities(value, (*path, str(key)))


def _shown(path: Path) -> str:
    """A file as a reader finds it: below the project, or the whole path of another's."""
    return str(path.relative_to(project_root()) if path.is_relative_to(project_root()) else path)
