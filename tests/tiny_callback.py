"""A callback of somebody else's, which Hydra makes and calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback


class Touch(Callback):
    """Leaves a file of each event's name in a folder."""

    def __init__(self, folder: str) -> None:
        """An empty folder, or one that is there."""
        self._folder = Path(folder)

    def on_run_start(self, config: Any, **_: Any) -> None:
        """Leave a file."""
        (self._folder / "on_run_start").touch()

    def on_run_end(self, config: Any, **_: Any) -> None:
        """Leave a file."""
        (self._folder / "on_run_end").touch()

    def on_job_start(self, config: Any, **_: Any) -> None:
        """Leave a file."""
        (self._folder / "on_job_start").touch()

    def on_job_end(self, config: Any, **_: Any) -> None:
        """Leave a file."""
        (self._folder / "on_job_end").touch()

    def on_multirun_start(self, config: Any, **_: Any) -> None:
        """Leave a file."""
        (self._folder / "on_multirun_start").touch()

    def on_multirun_end(self, config: Any, **_: Any) -> None:
        """Leave a file."""
        (self._folder / "on_multirun_end").touch()
