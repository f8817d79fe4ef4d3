"""What is fitted to what: the specifications of `conf/fit/`.

Owns the reading of a specification and the numbers of device and engine files that it names. Must not know
how a cell is computed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.core.registry import unknown
from repro.core.typed import typed

ENDS = ("", "low", "high")
POINT = re.compile(r"(.+)\[(-?\d+)\]")


@dataclass(frozen=True)
class FittedNumber:
    """A number of a device or engine file.

    Attributes:
        file: the file below `conf/`, without its ending (`device/jetson_tx2`).
        at: its place in the file (`processors.gpu.launch`; `...efficiency[-1]` is a curve's last point).
        between: lower and upper bound of the search, in the file's unit.
        restated: ids that only repeat what it is fitted to, and are no longer predicted either.
    """

    file: str
    at: str
    between: tuple[float, ...]
    restated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.between) != 2 or not 0 < self.between[0] < self.between[1]:
            raise InputError(
                f"{self.at}: between is {list(self.between)}; it must be two rising positive numbers"
            )

    @property
    def name(self) -> str:
        """Its name in a fit."""
        return f"{self.file}: {self.at}"


@dataclass(frozen=True)
class FittedCell:
    """A published value and the measure that computes it.

    Attributes:
        id: its id in `conf/reference/`.
        measure: a name of `workshop.fitting.measures`.
        given: the measure's arguments.
        program: program of the device file whose rates count; empty for none.
        end: `low` or `high`, the end of a published range that is fitted; empty for its geometric mean.
        mean: cells with the same name here count once, by the mean of their log ratios; alone if empty.
    """

    id: str
    measure: str
    given: dict[str, Any] = field(default_factory=dict)
    program: str = ""
    end: str = ""
    mean: str = ""

    def __post_init__(self) -> None:
        if self.end not in ENDS:
            raise InputError(unknown(f"{self.id}: end", self.end, ENDS))


@dataclass(frozen=True)
class CarriedNumber:
    """A number that is another one times a ratio, and not fitted itself."""

    file: str
    at: str
    of: FittedNumber
    ratio: float


@dataclass(frozen=True)
class FitSpecification:
    """A device under an engine, the numbers to fit, and the cells to fit them to.

    Attributes:
        about: what the fit assumes.
        device: name of a device file.
        engine: name of an engine file; `own` for the one that the device names.
        numbers: what is fitted.
        cells: what it is fitted to.
        carried: numbers of other files that follow a fitted one.
        loss: of log ratios, a name that `scipy.optimize.least_squares` knows.
        by_default: whether a paper's setups take these numbers unless another engine is asked for.
        origin: what gave the files' numbers, if not this fit; they may differ from it, and stay.
    """

    about: str
    device: str
    numbers: tuple[FittedNumber, ...]
    cells: tuple[FittedCell, ...]
    engine: str = "own"
    carried: tuple[CarriedNumber, ...] = ()
    loss: Literal["soft_l1", "linear"] = "soft_l1"
    by_default: bool = True
    origin: str = ""

    def __post_init__(self) -> None:
        ids = [cell.id for cell in self.cells]
        if twice := [one for one in ids if ids.count(one) > 1]:
            raise InputError(f"the fit of {self.device} has the cell {twice[0]} twice")


def specifications() -> dict[str, Path]:
    """Specification files by name."""
    return {path.stem: path for path in sorted((conf_dir() / "fit").glob("*.yaml"))}


def specification(name: str) -> FitSpecification:
    """A specification by name.

    A cell that is `over` lists of names stands for one cell of each combination; its texts have the names in
    braces.

    Raises:
        InputError: there is none, or it is malformed.
    """
    if name not in specifications():
        raise InputError(unknown("fit", name, specifications()))
    content, where = read_mapping(specifications()[name]), f"conf/fit/{name}.yaml"
    cells = [one for cell in content.get("cells") or () for one in _each(cell, where)]
    return typed(FitSpecification, {**content, "cells": cells}, where)


def _each(cell: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """The cells that one entry of a specification stands for."""
    over = cell.get("over") or {} if isinstance(cell, Mapping) else None
    if not isinstance(over, Mapping) or not all(isinstance(names, list) for names in over.values()):
        raise InputError(f"{where}: {cell!r} is no cell; `over` has a list for each name")
    rest = {key: value for key, value in cell.items() if key != "over"}
    for values in product(*over.values()):
        yield _filled(rest, dict(zip(over, values, strict=True)), f"{where}, {cell.get('id')}")


def _filled(node: Any, names: Mapping[str, Any], where: str) -> Any:
    """A part of a cell with names in place of the braces of its texts."""
    if isinstance(node, Mapping):
        return {key: _filled(value, names, where) for key, value in node.items()}
    if not isinstance(node, str) or not names:
        return node
    try:
        return node.format(**names)
    except KeyError as wrong:
        raise InputError(f"{where}: {unknown('name in braces', str(wrong.args[0]), names)}") from None
    except (AttributeError, IndexError, ValueError):
        raise InputError(f"{where}: {node!r} must have names in its braces: {', '.join(names)}") from None


def conf_file(name: str) -> Path:
    """A file below `conf/`, named without its ending."""
    path = conf_dir() / f"{name}.yaml"
    if not path.exists():
        raise InputError(f"conf/{name}.yaml does not exist")
    return path


def _place(at: str) -> tuple[str, int | None]:
    """A fact's place, and the index of a curve's point if the place names one (`...efficiency[-1]`)."""
    match = POINT.fullmatch(at)
    return (match[1], int(match[2])) if match else (at, None)


def leaf(content: Mapping[str, Any], at: str) -> tuple[dict[str, Any], int | None]:
    """The fact at a place, and the index of the curve's point if the place names one.

    Raises:
        InputError: there is no fact.
    """
    place, point = _place(at)
    found: Any = content
    for key in place.split("."):
        if not isinstance(found, Mapping) or key not in found:
            raise InputError(f"{at}: there is no {key!r}; choose one of {', '.join(map(str, found))}")
        found = found[key]
    if not isinstance(found, dict) or ("value" not in found if point is None else "points" not in found):
        raise InputError(f"{at}: {found!r} is no {'number' if point is None else 'curve'}")
    return found, point


def number_at(content: Mapping[str, Any], at: str) -> float:
    """The number at a place, in the file's unit."""
    fact, point = leaf(content, at)
    return float(fact["value"] if point is None else fact["points"][point][1])


def with_number(content: Mapping[str, Any], at: str, value: float) -> dict[str, Any]:
    """A copy of a file's content with another number at a place."""
    changed = copy.deepcopy(dict(content))
    fact, point = leaf(changed, at)
    if point is None:
        fact["value"] = value
    else:
        fact["points"][point][1] = value
    return changed


def changed_text(text: str, at: str, value: float, digits: int = 3) -> str:
    """The text of a YAML file with another number at a place.

    Raises:
        InputError: there is no number at the place.
    """
    place, point = _place(at)
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
