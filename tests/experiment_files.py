"""What a paper's experiment files say, read as their tests need it."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from repro.core.paths import conf_dir
from tiny_project import composed, spec_of


def names(paper: str) -> list[str]:
    """The experiments of a paper."""
    return sorted(path.stem for path in (conf_dir() / "experiment" / paper).glob("*.yaml"))


def section(paper: str, name: str) -> dict[str, Any]:
    """The `table:` section of an experiment."""
    return spec_of(composed(f"experiment={paper}/{name}"))


def swept(paper: str, name: str) -> dict[str, list[str]]:
    """What an experiment's sweep goes through: the values of each setting."""
    loaded = OmegaConf.load(conf_dir() / "experiment" / paper / f"{name}.yaml")
    params = OmegaConf.select(loaded, "hydra.sweeper.params") or {}
    return {str(setting): str(values).split(",") for setting, values in params.items()}
