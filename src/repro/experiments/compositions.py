"""Cells of sweeps whose commands stand in results, and Hydra opened within another command.

Must not know what a configuration means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from hydra.utils import instantiate
from omegaconf import DictConfig

from repro.core.foreign import require_recorded
from repro.core.overrides import unquoted
from repro.experiments.cell_configs import CellConfigs, parsed
from repro.experiments.composing import EXPERIMENT, ConfFolder, Needless, PartsLoader
from repro.reports.spec.beside import carried
from repro.reports.spec.experiment import experiment_file, experiments


def unswept(overrides: Iterable[str]) -> list[str]:
    """The overrides that say the same of all cells, which alone can be composed outside a sweep."""
    parsed = OverridesParser.create().parse_overrides([*overrides])
    return [str(override.input_line) for override in parsed if not override.is_sweep_override()]


def jobs_of(config: DictConfig, overrides: Iterable[str]) -> list[tuple[str, ...]]:
    """The overrides of each cell of a sweep with this configuration and command."""
    sweeper = instantiate(config.hydra.sweeper)
    written = [*(f"{name}={value}" for name, value in sweeper.params.items()), *overrides]
    batches = sweeper.split_arguments(OverridesParser.create().parse_overrides(written), None)
    return [tuple(cell) for batch in batches for cell in batch]


def by_experiment(arguments: list[str]) -> list[list[str]]:
    """A command, or one for each experiment that it names: each has cells and a table of its own.

    Experiments without a grid and a table are cells of one sweep, as other choices are.
    """
    for place, argument in enumerate(arguments):
        if (
            not argument.startswith(f"{EXPERIMENT}=")
            or not (override := parsed(argument)).is_sweep_override()
        ):
            continue
        values = override._value
        known = sorted(experiments())
        listed = values.filter(known) if isinstance(values, Glob) else [*override.sweep_string_iterator()]
        chosen = [*dict.fromkeys(map(unquoted, listed))]
        if any({"grid", "table"} & experiment_file(name).keys() for name in chosen):
            return [[*arguments[:place], f"{EXPERIMENT}={name}", *arguments[place + 1 :]] for name in chosen]
    return [arguments]


class Compositions:
    """The cells of sweeps whose commands stand in results, and their configurations (`CellConfigs`)."""

    def __init__(self, loader: ConfigLoaderImpl) -> None:
        """Compose as `loader` does, which `composing_in` has opened."""
        self.configs = CellConfigs(
            lambda choices, changed: compose("config", choices, return_hydra_config=True),
            loader.repository.group_exists,
        )

    def cells(self, overrides: Sequence[str]) -> list[tuple[str, ...]]:
        """The overrides of each cell of a sweep whose command stands in results.

        Raises:
            InputError: one is no setting; the results may be another's.
        """
        overrides = carried(require_recorded(overrides))
        return jobs_of(compose("config", unswept(overrides), return_hydra_config=True), overrides)

    def config(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration of one cell, not resolved."""
        return self.configs.composed(overrides)


hydra_lock = RLock()
"""Held while Hydra composes, which has one state for all threads of a process."""


@contextmanager
def opened(conf: Path) -> Iterator[ConfigLoader]:
    """Hydra with a folder like `conf/`, also within a command that it runs: its own is back afterwards."""
    with hydra_lock:
        outer, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
        try:
            with initialize_config_dir(str(conf), version_base="1.3"):
                yield GlobalHydra.instance().config_loader()
        finally:
            GlobalHydra.instance().hydra = outer


@contextmanager
def composing_in(conf: Path, needless: Needless) -> Iterator[Compositions]:
    """Compose cells of a folder like `conf/`, without the entries of experiments that are `needless`."""
    token = ConfFolder.needless.set(needless)
    ConfFolder.ours.add(str(conf))
    try:
        with opened(conf) as loader:
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            hydra.config_loader = parts = PartsLoader(loader.get_search_path())
            yield Compositions(parts)
    finally:
        ConfFolder.needless.reset(token)
