"""A Hydra sweeper for grids: the product of axes, times a list of settings that form no product.

It is here because Hydra accepts sweepers of the package `hydra_plugins` only. Must not know what a setting
means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString, RangeSweep, Transformer
from hydra.errors import HydraException

from repro.core.errors import InputError
from repro.core.overrides import word
from repro.experiments.hydra_private import BasicSweeper
from repro.reports.spec.beside import CARRIED, BesideSetting, as_typed, beside, label

LATER = "@{"
"""Stands for `${` in `params` and `cells`. Hydra resolves interpolations when it makes the sweeper, for all
cells alike; these wait for the configuration of each cell."""

WHEN = "when."
"""Before a setting in `cells`, as in `when.weights: own`: the part holds where the axis has this value."""


class GridSweeper(BasicSweeper):
    """Hydra's basic sweeper, which also goes through `cells`: overrides that hold together.

    A setting of the command line replaces that of an axis or of all cells; what it makes equal runs once, and
    so does a value that is listed twice, such as 0.3 and 3e-1.
    """

    def __init__(
        self,
        max_batch_size: int | None,
        max_cells: int | None,
        params: dict[str, str] | None = None,
        cells: Sequence[Mapping[str, str | Sequence[str]]] = (),
    ) -> None:
        """As the basic sweeper; `cells` are overrides by setting, a list of its values for each."""
        # The base class's `__init__` cannot be called: Hydra loads its plugins' modules a second time, and
        # the class that `super(BasicSweeper, self)` names in there is then another one.
        self.max_batch_size = max_batch_size
        self.max_cells = max_cells
        self.params = {name: _resolvable(value) for name, value in (params or {}).items()}
        self.overrides = None
        self.batch_index = 0
        self.hydra_context = None
        self.config = None
        self.launcher = None
        self.cells = [
            {str(name): [_resolvable(v) for v in _listed(values)] for name, values in part.items()}
            for part in cells
        ]

    def split_arguments(  # type: ignore[override]  # of the base class's, which is static
        self, overrides: list[Override], max_batch_size: int | None
    ) -> list[list[list[str]]]:
        """All jobs, in batches of at most this many.

        Raises:
            InputError: there are none, or more than `max_cells`; they are counted before they are made.
        """
        for name, most in (("max_batch_size", max_batch_size), ("max_cells", self.max_cells)):
            if most is not None and not (isinstance(most, int) and most >= 1):
                raise InputError(f"hydra.sweeper.{name} is {most!r}; it must be a number of cells, from 1")
        overrides = [*map(_uncarried, overrides)]
        varied = _beside(override for override in overrides if override.get_key_element().startswith(CARRIED))
        overrides = [one for one in overrides if not one.get_key_element().startswith(CARRIED)]
        axes = {override.get_key_element(): override for override in overrides}
        # The axes come first, then the command line; only that replaces settings of `cells`.
        given = {override.get_key_element().lstrip("+") for override in overrides[len(self.params) :]}
        parts = [_without(part, given) for part in self.cells] or [{}]
        counts = {name: _count(override) for name, override in axes.items()}
        total = math.prod(counts.values()) * sum(math.prod(map(len, part.values())) for part in parts)
        if not total:
            lengths = [*counts.items(), *((name, len(part[name])) for part in parts for name in part)]
            empty = dict.fromkeys(name for name, count in lengths if not count)
            raise InputError(f"the sweep has no cells: there is no value of {', '.join(empty)}")
        if self.max_cells is not None and total > self.max_cells:
            raise InputError(
                f"the sweep has {total:,} cells, and hydra.sweeper.max_cells={self.max_cells} is the most; "
                f"vary less, or allow it with hydra.sweeper.max_cells={total}"
            )
        outer = [[f"{name}={value}" for value in _values(override)] for name, override in axes.items()]
        inner = _once((point for part in parts for point in _points(part)), _point)
        points = [(_conditions(point), [one for one in point if not one.startswith(WHEN)]) for point in inner]
        jobs = [[*job, *point] for job in product(*outer) for when, point in points if when <= {*job}]
        for asked in varied:
            if not any(asked.choice in job for job in jobs):
                raise InputError(
                    f"{asked.component}.{asked.setting} holds in the cells with {asked.choice}, and this "
                    f"sweep has none; {asked.choice} {asked.override}=VALUE sets it"
                )
        jobs = [each for job in jobs for each in self._with_beside(job, varied, given)]
        return [list(batch) for batch in self.split_overrides_to_chunks(jobs, max_batch_size)]

    def _with_beside(
        self, job: list[str], varied: Mapping[BesideSetting, list[str]], given: set[str]
    ) -> Iterator[list[str]]:
        """A job, or one for each value of settings that its component alone has.

        In an experiment the others' cells have labels of their own, and its own cell stays.
        """
        chosen = {asked: values for asked, values in varied.items() if asked.choice in job}
        if not chosen:
            yield job
            return
        group = next(iter(chosen)).group
        is_own = bool(self.params or self.cells) and group not in given
        untouched = not any(override.startswith(f"{group}.") for override in job)
        if is_own:
            yield job
        for values in product(*chosen.values()):
            pairs = [*zip(chosen, values, strict=True)]
            if is_own and untouched and all(asked.is_default(value) for asked, value in pairs):
                continue
            named = [f"++labels.{group}={word(label(pairs))}"] if self.params or self.cells else []
            yield [*job, *(f"{asked.override}={value}" for asked, value in pairs), *named]

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Nothing: our launchers plan the jobs while they run."""


def _uncarried(override: Override) -> Override:
    """An override as it was typed, if it was carried here and is of no single component."""
    key = override.get_key_element().removeprefix(CARRIED)
    if key == override.get_key_element() or beside(key):
        return override
    return OverridesParser.create().parse_override(as_typed(str(override.input_line)))


def _beside(overrides: Iterable[Override]) -> dict[BesideSetting, list[str]]:
    """Values by settings of single components."""
    found = {}
    parser = OverridesParser.create()
    for override in overrides:
        key = override.get_key_element().removeprefix(CARRIED)
        asked = beside(key)
        assert asked is not None
        found[asked] = _values(parser.parse_override(f"{key}={override.value()}"))
    return found


def _conditions(point: Iterable[str]) -> set[str]:
    """The settings of the axes that a point of `cells` asks for."""
    return {setting.removeprefix(WHEN) for setting in point if setting.startswith(WHEN)}


def _resolvable(value: object) -> str:
    """A value as an override writes it, with interpolations."""
    return str(value).replace(LATER, "${")


def _listed(values: Any) -> Sequence[Any]:
    return [values] if isinstance(values, str) or not isinstance(values, Sequence) else values


def _without(part: Mapping[str, list[str]], given: set[str]) -> dict[str, list[str]]:
    """A part's overrides, without settings that are given otherwise, and what lies below these."""

    def replaced(name: str) -> bool:
        return name in given or any(name.startswith(f"{one}.") for one in given)

    return {f"{_mark(name)}{name}": v for name, v in part.items() if not replaced(name.lstrip("+"))}


def _mark(name: str) -> str:
    """A label need not be there before."""
    return "++" if name.startswith("labels.") else ""


def _count(override: Override) -> int:
    """How many values an override has, by arithmetic where it is a range."""
    sweep = override._value
    if not override.is_sweep_override() or not override.is_discrete_sweep():
        return 1
    if isinstance(sweep, RangeSweep) and sweep.start is not None and sweep.stop is not None and sweep.step:
        return max(0, math.ceil((sweep.stop - sweep.start) / sweep.step))
    return len([*override.sweep_iterator()])


def _values(override: Override) -> list[str]:
    """The different values of an override as the command line writes them, each in its first spelling."""
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    if not override.is_discrete_sweep():
        raise HydraException(f"a grid has no values for {override.input_line}; list them, or give a range")
    return [Transformer.str(element) for element in _once(override.sweep_iterator(), _meaning)]


def _once(values: Iterable[Any], meaning: Callable[[Any], Any]) -> list[Any]:
    """The values that differ in meaning, each in its first spelling."""
    first: dict[Any, Any] = {}
    for value in values:
        first.setdefault(meaning(value), value)
    return list(first.values())


def _points(part: Mapping[str, list[str]]) -> Iterator[tuple[str, ...]]:
    for values in product(*part.values()):
        yield tuple(f"{name}={value}" for name, value in zip(part, values, strict=True))


def _point(overrides: Sequence[str]) -> frozenset[Any]:
    """What overrides say together, whatever their order and spelling."""
    return frozenset(map(_parsed, overrides))


@cache
def _parsed(override: str) -> Any:
    parsed = OverridesParser.create().parse_override(override)
    return parsed.get_key_element(), _meaning(parsed._value)


def _meaning(value: Any) -> Any:
    """What tells values apart: 1 and 1.0 are equal, and so are a text and the same in quotes."""
    if isinstance(value, Mapping):
        return frozenset((str(name), _meaning(below)) for name, below in value.items())
    if isinstance(value, list):
        return tuple(map(_meaning, value))
    text = value.text if isinstance(value, QuotedString) else value
    return isinstance(text, (int, float)) and not isinstance(text, bool), text, type(text) is bool
