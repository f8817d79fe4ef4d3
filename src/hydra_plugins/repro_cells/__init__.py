"""The Hydra launcher `cells`, the default: it plans a sweep's cells and runs them as they are planned.

It is here because Hydra accepts launchers of the package `hydra_plugins` only. `experiments.driver` does the
work.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, configure_log, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

ConfigStore.instance().store(
    group="hydra/launcher",
    name="cells",
    node={"_target_": "hydra_plugins.repro_cells.CellsLauncher"},
    provider="repro",
)


class CellsLauncher(Launcher):
    """Runs cells in the command's process, one after the other."""

    plans = True
    """It composes the cells itself, so nobody has to before."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what Hydra gives."""
        self._context = hydra_context
        self._config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run these cells; their notes go to the sweep, so that nothing is returned."""
        from repro.experiments.cli import run_cells  # late, since Hydra reads this file first

        setup_globals()
        with open_dict(self._config):
            self._config.hydra.runtime.output_dir = os.path.abspath(self._config.hydra.sweep.dir)
        configure_log(self._config.hydra.job_logging, self._config.hydra.verbose)
        run_cells(self._config, self._context.config_loader, job_overrides, initial_job_idx)
        return []
