"""Hydra launchers that plan a sweep's cells and run them meanwhile: `cells`, the default, and `dask`.

They are here because Hydra accepts launchers of the package `hydra_plugins` only. `experiments.sweep` and
`experiments.dask_engine` do the work.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, configure_log, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

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
        self._context = hydra_context
        self._config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run these cells; what comes of them goes to the sweep, so that nothing is returned."""
        from repro.experiments.cli import run_cells  # late, since Hydra reads this file first

        setup_globals()
        with open_dict(self._config):
            self._config.hydra.runtime.output_dir = os.path.abspath(self._config.hydra.sweep.dir)
        configure_log(self._config.hydra.job_logging, self._config.hydra.verbose)
        run_cells(self._config, self._context.config_loader, job_overrides, initial_job_idx, self._engine())
        return []

    def _engine(self) -> Any:
        """What runs the cells; `None` for this process."""
        return None


class DaskLauncher(CellsLauncher):
    """Runs cells with Dask: on this machine, on a cluster that is there, or in jobs of a queue."""

    def __init__(
        self,
        workers: int | None,
        threads: int | None,
        address: str | None,
        queue: str | None,
        job: Mapping[str, Any] | None,
    ) -> None:
        """Where workers are (`experiments.dask_engine.Cluster`)."""
        self._where: dict[str, Any] = {
            "workers": workers,
            "threads": threads,
            "address": address,
            "queue": queue,
            "job": job,
        }

    def _engine(self) -> Any:
        from repro.experiments.dask_engine import Cluster, dask_engine  # late, as it imports Dask

        return dask_engine(Cluster(**self._where))
