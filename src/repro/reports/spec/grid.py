"""An experiment's grid: the cells that its sweep consists of.

Owns the reading of `grid:` and the list of its cells. Must not know Hydra, nor what a setting means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from repro.core.errors import InputError
from repro.core.overrides import PLAIN_TEXT, word
from repro.core.registry import unknown

CELLS_KEY = "cells"
"""The key of `grid:` that lists settings which do not form a product."""

RANGE_PATTERN = re.compile(r"range\(\s*(-?\d+)\s*,\s*(-?\d+)\s*(?:,\s*(-?\d+)\s*)?\)")

GUARD = "when."
"""Before a setting in `cells`: the part holds where the axis of that name has this value."""

MOST_CELLS = 20_000
"""Cells above which a grid is not written out; its sweep has a limit of its own (conf/hydra/sweeper)."""

Point = Mapping[str, Any]
"""A cell's settings by the names that the command line uses, such as `model@target`."""


@dataclass(frozen=True)
class ExperimentGrid:
    """A product of axes, times a list of parts each of which is a product itself.

    Attributes:
        axes: values by setting; a string is a sweep expression of the command line, such as `range(0,30)`.
        parts: the entries of `cells:`; one empty part if there are none.
    """

    axes: Mapping[str, tuple[Any, ...] | str]
    parts: tuple[Mapping[str, tuple[Any, ...]], ...] = ({},)

    @classmethod
    def parse(cls, content: Mapping[str, Any] | None, where: str) -> ExperimentGrid:
        """Read a `grid:` section; InputError for an axis or a part that is none."""
        settings = dict(content or {})
        cells = settings.pop(CELLS_KEY, None)
        axes = {str(name): _axis(value, f"{where}, {name}") for name, value in settings.items()}
        if cells is None:
            return cls(axes)
        if not isinstance(cells, list) or not all(isinstance(part, Mapping) and part for part in cells):
            raise InputError(f"{where}, cells: {cells!r} must be a list of settings, such as {{method: sp}}")
        grids = []
        for part in cells:
            twice = sorted(set(map(str, part)) & set(axes))
            if twice:
                raise InputError(f"{where}: {twice[0]!r} stands both among the axes and in `cells`; keep one")
            for name in (str(n).removeprefix(GUARD) for n in part if str(n).startswith(GUARD)):
                if name not in axes:
                    raise InputError(f"{where}, cells: {GUARD}{name}: {unknown('axis', name, axes)}")
            if empty_names := [name for name, values in part.items() if values == []]:
                raise InputError(f"{where}, cells: there is no value of {empty_names[0]}")
            grids.append({str(n): tuple(v) if isinstance(v, list) else (v,) for n, v in part.items()})
        return cls(axes, tuple(grids))

    @property
    def params(self) -> dict[str, str]:
        """The axes as sweep expressions by setting."""
        return {
            name: values if isinstance(values, str) else ",".join(map(word, values))
            for name, values in self.axes.items()
        }

    @property
    def choices(self) -> list[dict[str, str | list[str]]]:
        """The parts, written out: the overrides of each; empty if there is nothing but axes.

        Of more than `MOST_CELLS` each setting has the list of its values, which the sweep counts.
        """
        if _size(self.parts) > MOST_CELLS:
            return [{name: [*map(word, values)] for name, values in part.items()} for part in self.parts]
        points = [point for part in self.parts for point in _product(part)]
        return [{name: word(value) for name, value in point.items()} for point in points if point]

    def points(self) -> list[Point] | None:
        """All cells, in order.

        None if an axis is an expression that only the command line can read, or for over `MOST_CELLS` cells.
        """
        axes = {name: _read(values) for name, values in self.axes.items()}
        sizes = [len(values) for values in axes.values() if values is not None]
        if len(sizes) < len(axes) or prod(sizes) * _size(self.parts) > MOST_CELLS:
            return None
        outer_points = list(_product({name: values for name, values in axes.items() if values is not None}))
        pairs = (
            (point, choices) for point in outer_points for part in self.parts for choices in _product(part)
        )
        return [point | _settings(choices) for point, choices in pairs if _holds(choices, point)]


def _axis(value: Any, where: str) -> tuple[Any, ...] | str:
    if isinstance(value, list) and value:
        return tuple(value)
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) or value is None or value == []:
        raise InputError(f"{where}: {value!r} must be a list of values")
    return (value,)


def _read(values: tuple[Any, ...] | str) -> Sequence[Any] | None:
    if not isinstance(values, str):
        return values
    if (match := RANGE_PATTERN.fullmatch(values)) and int(match[3] or 1):
        return range(int(match[1]), int(match[2]), int(match[3] or 1))
    return (values,) if PLAIN_TEXT.fullmatch(values) else None


def _size(parts: Sequence[Mapping[str, Sequence[Any]]]) -> int:
    return sum(prod(map(len, part.values())) for part in parts)


def _holds(part: Point, axes: Point) -> bool:
    """Whether the axes have the values under which a part holds."""
    return all(axes.get(name.removeprefix(GUARD)) == v for name, v in part.items() if name.startswith(GUARD))


def _settings(part: Point) -> dict[str, Any]:
    return {name: value for name, value in part.items() if not name.startswith(GUARD)}


def _product(values: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for combination in product(*values.values()):
        yield dict(zip(values, combination, strict=True))
