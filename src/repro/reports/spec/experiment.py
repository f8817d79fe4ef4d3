"""Finds and reads experiments' files without Hydra. Must not know what a grid or a table means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.core.errors import InputError
from repro.core.paths import conf_folders
from repro.core.reading import read_mapping
from repro.core.registry import unknown
from repro.reports.spec.grid import ExperimentGrid


def experiments(folders: Sequence[Path] | None = None) -> dict[str, Path]:
    """The files of all experiments by name, those of other packages too; the first of a name counts."""
    files: dict[str, Path] = {}
    for folder in conf_folders() if folders is None else folders:
        root = folder / "experiment"
        for path in sorted(root.rglob("*.yaml")):
            files.setdefault(path.relative_to(root).with_suffix("").as_posix(), path)
    return files


def experiment_file(name: str) -> dict[str, Any]:
    """The content of an experiment's file, with its `name`; only the name if there is no such file."""
    for folder in conf_folders():
        path = folder / "experiment" / f"{name}.yaml"
        if path.is_file():
            return {"name": name, **read_mapping(path)}
    return {"name": name}


def grid_of(content: Mapping[str, Any]) -> ExperimentGrid:
    """The grid of an experiment's file; a text names the experiment whose grid it is.

    Raises:
        InputError: the grid is malformed, or there is no such experiment.
    """
    where = f"experiment {content.get('name', '')!r}, grid"
    grid = content.get("grid")
    if isinstance(grid, str):
        if grid not in experiments():
            raise InputError(f"{where}: {unknown('experiment', grid, experiments())}")
        grid = experiment_file(grid).get("grid")
    if grid is not None and not isinstance(grid, Mapping):
        raise InputError(f"{where}: {grid!r} must be a mapping of settings, or the name of an experiment")
    return ExperimentGrid.parse(grid, where)
