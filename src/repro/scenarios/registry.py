"""Which scenario a configuration asks for.

Owns that choice and nothing of what scenarios do; each is imported when there is a cell of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from repro.core.errors import InputError
from repro.records.record import Record
from repro.scenarios.base import Scenario

GENERATION = "repro.scenarios.generation.scenario:GenerationScenario"

BY_GROUP = {
    "compression": "repro.scenarios.accuracy:AccuracyScenario",
    "probe": "repro.scenarios.activations:ActivationsScenario",
    "service": "repro.scenarios.serving.scenario:ServingScenario",
}
"""Scenarios by the group of the configuration that asks for them; without any of these it generates."""

GROUPS = ("method", *BY_GROUP)
"""Groups of the registry that are groups of options."""


def scenario_of(config: Mapping[str, Any]) -> type[Scenario]:
    """The scenario that a resolved configuration asks for."""
    module, _, name = next((c for g, c in BY_GROUP.items() if config.get(g)), GENERATION).partition(":")
    found: type[Scenario] = getattr(import_module(module), name)
    return found


def made(config: Mapping[str, Any]) -> Scenario:
    """The cell that a resolved configuration describes; InputError if it cannot work."""
    return scenario_of(config)(config)


def is_current(record: Record) -> bool:
    """Whether the components that made a record have the versions of today."""
    try:
        return made(record.provenance.config).versions == record.provenance.versions
    except (InputError, KeyError):  # a component or a setting of it is gone
        return False
