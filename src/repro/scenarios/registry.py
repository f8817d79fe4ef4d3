"""Select the scenario of a configuration.

Owns that choice. Must not know what scenarios do; each is imported when first needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from repro.core.errors import InputError
from repro.core.remembered import remember
from repro.data.config import read_config
from repro.records.record import Record, require_finite_numbers
from repro.scenarios.base import Scenario
from repro.scenarios.sections import check_sections

GENERATION_CLASS = "repro.scenarios.generation.scenario:GenerationScenario"

CLASS_BY_GROUP = {
    "compression": "repro.scenarios.accuracy:AccuracyScenario",
    "probe": "repro.scenarios.activations:ActivationsScenario",
    "service": "repro.scenarios.serving.scenario:ServingScenario",
}
"""Scenario classes by configuration group; a configuration without any of these groups is generation."""

GROUPS = ("method", *CLASS_BY_GROUP)
"""Registry groups that are also Hydra config groups."""


def scenario_of(config: Mapping[str, Any]) -> type[Scenario]:
    """The scenario class of a resolved configuration."""
    module, _, name = next(
        (c for g, c in CLASS_BY_GROUP.items() if config.get(g)), GENERATION_CLASS
    ).partition(":")
    scenario: type[Scenario] = getattr(import_module(module), name)
    return scenario


def made(config: Mapping[str, Any]) -> Scenario:
    """Create the cell of a resolved configuration; InputError if it is invalid or a number is not finite."""
    scenario = scenario_of(config)
    check_sections(config, scenario.group)
    cell = scenario(config)  # it names numbers out of range
    for name, section in config.items():
        _require_finite_numbers(section, name)
    return cell


_require_finite_numbers = remember(1024)(require_finite_numbers)


def is_current(record: Record) -> bool:
    """Whether the versions of a record's components and of the dataset that it read are today's."""
    try:
        if made(record.provenance.config).versions != record.provenance.versions:
            return False
    except (InputError, KeyError):  # a component or a setting of it is gone
        return False
    dataset = record.provenance.config.get("dataset")
    if not isinstance(dataset, Mapping) or record.provenance.inputs.get("dataset", "none") == "none":
        return True  # no row was read
    try:
        return bool(read_config(str(dataset["name"])).version == dataset["version"])
    except (InputError, KeyError):  # a dataset of somebody's own
        return True
