"""A Hydra sweeper for grids: the product of axes, times a list of settings that form no product.

It is here because Hydra accepts sweepers of the package `hydra_plugins` only. Must not know what a setting
means.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep, Transformer
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from repro.core.errors import InputError
from repro.core.overrides import word
from repro.reports.spec.beside import CARRIED_PREFIX, BesideSetting, as_typed, beside, label

POSTPONED = "@{"
"""Stands for `${` in `params` and `cells`. Hydra resolves interpolations when it makes the sweeper, for all
cells alike; these wait for the configuration of each cell."""

WHEN = "when."
"""Before a setting in `cells`, as in `when.weights: own`: the part holds where the axis has this value."""


class GridSweeper(Sweeper):
    """Goes through the product of the command's values, and `cells`: overrides that hold together.

    A setting of the command line replaces that of an axis or of all cells. All jobs go to the launcher at
    once; the sweep runs equal ones once, by their keys.
    """

    def __init__(
        self,
        max_cells: int | None,
        params: Mapping[str, str] | None = None,
        cells: Sequence[Mapping[str, str | Sequence[str]]] = (),
    ) -> None:
        """`params` are the axes, `cells` overrides by setting, a list of its values for each."""
        self._loader: ConfigLoader | None = None
        self.max_cells = max_cells
        self.params = {name: _resolvable(value) for name, value in (params or {}).items()}
        self.cells = [
            {str(name): [_resolvable(v) for v in _as_list(values)] for name, values in part.items()}
            for part in cells
        ]

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Make the launcher."""
        self._loader = hydra_context.config_loader
        self._launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Run all cells of a command with these overrides; errors as of `jobs`."""
        return self._launcher.launch(self.jobs(arguments), initial_job_idx=0)

    def jobs(self, arguments: Iterable[str]) -> list[list[str]]:
        """The overrides of each cell of a command with these overrides.

        Raises:
            InputError: there are no cells, or more than `max_cells`; they are counted before they are made.
        """
        if self.max_cells is not None and not (isinstance(self.max_cells, int) and self.max_cells >= 1):
            raise InputError(
                f"hydra.sweeper.max_cells is {self.max_cells!r}; it must be a number of cells, from 1"
            )
        texts = [*(f"{name}={value}" for name, value in self.params.items()), *arguments]
        parser = OverridesParser.create(config_loader=self._loader)
        overrides = [*map(_uncarry, parser.parse_overrides(texts))]
        varied = _beside(
            override for override in overrides if override.get_key_element().startswith(CARRIED_PREFIX)
        )
        overrides = [each for each in overrides if not each.get_key_element().startswith(CARRIED_PREFIX)]
        axes = {override.get_key_element(): override for override in overrides}
        # The axes come first, then the command line; only that replaces settings of `cells`.
        typed_names = {override.get_key_element().lstrip("+") for override in overrides[len(self.params) :]}
        parts = [_without(part, typed_names) for part in self.cells] or [{}]
        counts = {name: _count(override) for name, override in axes.items()}
        total = math.prod(counts.values()) * sum(math.prod(map(len, part.values())) for part in parts)
        if not total:
            lengths = [*counts.items(), *((name, len(part[name])) for part in parts for name in part)]
            empty_axes = dict.fromkeys(name for name, count in lengths if not count)
            raise InputError(f"the sweep has no cells: there is no value of {', '.join(empty_axes)}")
        if self.max_cells is not None and total > self.max_cells:
            raise InputError(
                f"the sweep has {total:,} cells, and hydra.sweeper.max_cells={self.max_cells} is the most; "
                f"vary less, or allow it with hydra.sweeper.max_cells={total}"
            )
        axis_values = [[f"{name}={value}" for value in _values(override)] for name, override in axes.items()]
        part_points = [point for part in parts for point in _points(part)]
        points = [
            (_conditions(point), [setting for setting in point if not setting.startswith(WHEN)])
            for point in part_points
        ]
        jobs = [[*job, *point] for job in product(*axis_values) for when, point in points if when <= {*job}]
        jobs = [[*job] for job in dict.fromkeys(map(tuple, jobs))]
        for owner in varied:
            choice = owner.choice
            if not any(choice in job for job in jobs):
                raise InputError(
                    f"{owner.component}.{owner.setting} holds in the cells with {choice}, and "
                    f"this sweep has none; {choice} {owner.override}=VALUE sets it"
                )
        return [each for job in jobs for each in self._with_beside(job, varied, typed_names)]

    def _with_beside(
        self, job: list[str], carried: Mapping[BesideSetting, list[str]], typed_names: set[str]
    ) -> Iterator[list[str]]:
        """A job, or one for each value of settings that its component alone has.

        In an experiment the others' cells have labels of their own, and its own cell stays.
        """
        settings = {setting: values for setting, values in carried.items() if setting.choice in job}
        if not settings:
            yield job
            return
        group = next(iter(settings)).group
        is_own = bool(self.params or self.cells) and group not in typed_names
        is_untouched = not any(override.startswith(f"{group}.") for override in job)
        if is_own:
            yield job
        for values in product(*settings.values()):
            pairs = [*zip(settings, values, strict=True)]
            if is_own and is_untouched and all(setting.is_default(value) for setting, value in pairs):
                continue
            label_overrides = [f"++labels.{group}={word(label(pairs))}"] if self.params or self.cells else []
            yield [*job, *(f"{setting.override}={value}" for setting, value in pairs), *label_overrides]


def _uncarry(override: Override) -> Override:
    """An override as it was typed, if it was carried here and is of no single component."""
    key = override.get_key_element().removeprefix(CARRIED_PREFIX)
    if key == override.get_key_element() or beside(key):
        return override
    return OverridesParser.create().parse_override(as_typed(str(override.input_line)))


def _beside(overrides: Iterable[Override]) -> dict[BesideSetting, list[str]]:
    """Values by settings of single components."""
    values = {}
    parser = OverridesParser.create()
    for override in overrides:
        key = override.get_key_element().removeprefix(CARRIED_PREFIX)
        setting = beside(key)
        assert setting is not None
        values[setting] = _values(parser.parse_override(f"{key}={override.value()}"))
    return values


def _conditions(point: Iterable[str]) -> set[str]:
    """The settings of the axes that a point of `cells` asks for."""
    return {setting.removeprefix(WHEN) for setting in point if setting.startswith(WHEN)}


def _resolvable(value: object) -> str:
    """A value as an override writes it, with interpolations."""
    return str(value).replace(POSTPONED, "${")


def _as_list(values: Any) -> Sequence[Any]:
    return [values] if isinstance(values, str) or not isinstance(values, Sequence) else values


def _without(part: Mapping[str, list[str]], names: set[str]) -> dict[str, list[str]]:
    """A part's overrides, without settings that are given otherwise, and what lies below these."""

    def is_replaced(name: str) -> bool:
        return name in names or any(name.startswith(f"{prefix}.") for prefix in names)

    return {f"{_mark(name)}{name}": v for name, v in part.items() if not is_replaced(name.lstrip("+"))}


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
    """The values of an override as the command line writes them, equal numbers once."""
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    if not override.is_discrete_sweep():
        raise HydraException(f"a grid has no values for {override.input_line}; list them, or give a range")
    spellings: dict[Any, str] = {}
    for value in override.sweep_iterator():
        text = Transformer.str(value)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        spellings.setdefault(value if is_number else text, text)
    return [*spellings.values()]


def _points(part: Mapping[str, list[str]]) -> Iterator[tuple[str, ...]]:
    for values in product(*part.values()):
        yield tuple(f"{name}={value}" for name, value in zip(part, values, strict=True))
