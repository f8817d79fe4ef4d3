"""What a paper's experiment files say, read as their tests need it."""

from __future__ import annotations

from functools import cache
from typing import Any

from repro.core.overrides import word
from repro.core.paths import conf_dir
from repro.reports.spec.experiment import experiment_file, grid_of
from repro.reports.spec.spec import TableSpec
from tiny_project import composed, spec_of


def names(paper: str) -> list[str]:
    """The experiments of a paper."""
    return sorted(path.stem for path in (conf_dir() / "experiment" / paper).glob("*.yaml"))


@cache
def _spec(paper: str, name: str) -> TableSpec | dict[str, Any]:
    return spec_of(composed(f"experiment={paper}/{name}"))


def table(paper: str, name: str) -> TableSpec:
    """The table of an experiment that has cells."""
    spec = _spec(paper, name)
    assert isinstance(spec, TableSpec)
    return spec


def section(paper: str, name: str) -> dict[str, Any]:
    """The section of an experiment without cells, written out; of another one nothing."""
    spec = _spec(paper, name)
    return spec if isinstance(spec, dict) else {}


def swept(paper: str, name: str) -> dict[str, list[str]]:
    """What an experiment's sweep goes through: the values of each setting, in order."""
    found: dict[str, dict[str, None]] = {}
    for point in grid_of(experiment_file(f"{paper}/{name}")).points() or []:
        for setting, value in point.items():
            found.setdefault(setting, {}).setdefault(word(value))
    return {setting: list(values) for setting, values in found.items()}
