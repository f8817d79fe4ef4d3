"""Hydra launchers, which hand the cells of a sweep to the command: `cells`, the default, and `dask`.

They are here because Hydra accepts launchers of the package `hydra_plugins` only. The task that they are
given is `experiments.cli.Command`; `experiments.sweep` and `experiments.dask_engine` do the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

WHERE = {"workers": None, "threads": None, "address": None, "queue": None, "job": None}
"""The settings of `dask` (`experiments.dask_engine.Cluster`)."""

for name, settings in (("cells", {}), ("dask", WHERE)):
    ConfigStore.instance().store(
        group="hydra/launcher",
        name=name,
        node={"_target_": f"hydra_plugins.repro_cells.{name.capitalize()}Launcher", **settings},
        provider="repro",
    )


class CellsLauncher(Launcher):
    """Runs cells in the command's process, one after the other."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what Hydra gives."""
        self._command: Any = task_function
        self._loader = hydra_context.config_loader
        self._config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run these cells and end their sweep; the command says how, so that nothing is returned."""
        self._command.run_sweep(self._config, self._loader, job_overrides, self._engine())
        return []

    def _engine(self) -> Any:
        """What runs the cells; `None` for this process."""
        return None


class DaskLauncher(CellsLauncher):
    """Runs cells with Dask: on this machine, on a cluster that is there, or in jobs of a queue."""

    def __init__(self, **where: Any) -> None:
        """Where workers are: the settings of `experiments.dask_engine.Cluster`."""
        self._where = where

    def _engine(self) -> Any:
        from repro.experiments.dask_engine import Cluster, dask_engine  # late, as it imports Dask

        return dask_engine(Cluster(**self._where))
