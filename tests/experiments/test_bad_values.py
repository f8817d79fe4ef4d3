"""Every field of every group of a configuration refuses values that make no sense, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import pytest

from bad_values import Try, faults, tries
from repro.core.registry import lookup, names
from repro.experiments.composing import load_components
from repro.experiments.plan import cell_config

load_components()

BASES = {
    "method": ("method=chain_sd", "engine=own"),
    "engine": ("engine=lever_serial",),
    "shape": ("model@target=qwen3_8b_q4_0",),
    "choice": ("dataset=arc_easy_5shot",),
    "compression": ("compression=awq", "dataset=arc_easy_5shot"),
    "probe": ("probe=outliers", "dataset=wikitext2"),
    "service": ("service=full", "trace=six_apps", "device=xiaomi_14"),
}
"""A valid configuration of each kind of cell, by the group of its component."""

ACCEPTED = {
    # settings of the run
    "name": "misspelt",
    "labels": "null",
    "labels.promts": "unknown",
    "prompts": "huge",  # how many rows there are is known with the dataset
    "prompt_tokens": "number null",
    "skip": "zero",
    "seed": "zero huge",
    "calibrate_draft_to": "null",
    "resident": "null",
    "format": "null",
    "metrics": "empty",
    "cooldown": "zero broken",
    "data_dir": "misspelt empty null",
    "results": "misspelt",
    "outputs": "misspelt",
    "sampling.temperature": "zero broken huge",
    "wandb.mode": "null",
    "wandb.project": "misspelt null",
    "wandb.again": "null",
    "wandb.cells": "null",
    "wandb.dir": "misspelt null",
    "wandb.entity": "misspelt null",
    "wandb.notes": "misspelt empty null",
    "wandb.tags": "empty list null",
    # components; null makes it a cell of another kind
    "engine": "null",
    "compression": "null",
    "probe": "null",
    "service": "null",
    "trace": "null",  # the demonstration
    "method.resident": "zero",
    "method.prefetch": "zero",
    "method.fallback": "zero",
    "method.rollback": "zero broken",
    "method.ahead": "zero",
    "method.memory": "null",
    "method.width": "zero",  # Ghidorah searches it; refused by the others
    "method.reach": "zero",
    "method.switch": "zero",
    "method.*_decay": "zero",
    "method.penalty": "zero",
    "method.threshold": "zero",
    "method.temperature": "broken",
    "method.near_children": "zero",
    "method.least_nodes": "zero",
    "method.pruned": "zero",
    "method.outliers": "zero",
    "method.hot": "zero",
    "method.cold": "zero",
    "method.window": "zero broken huge",
    "method.latency": "broken",
    "method.preload": "zero",
    "compression.lowest": "zero",
    "compression.spare_*": "zero",
    "compression.threshold": "zero negative broken",
    "compression.step": "broken",
    "compression.pruned": "zero",
    "compression.alpha": "zero",
    "compression.anchors": "zero",
    "probe.layer": "zero",
    "probe.depth": "zero null",
    "probe.quantile": "zero",
    "probe.hot": "zero",
    "service.anchors": "zero",
    # files
    "target.name": "misspelt",
    "draft.name": "misspelt",
    "dataset.name": "misspelt",
    "device.name": "misspelt",
    "engine.name": "misspelt",
    "trace.name": "misspelt",
    "corpus.dataset.name": "misspelt",
    "*.checkpoint.name": "misspelt",
    "*.checkpoint.folder": "misspelt null",
    "*.checkpoint.hub": "null",
    "*.checkpoint.hub.repo": "misspelt",
    "*.checkpoint.hub.revision": "misspelt null",
    "*.checkpoint.shares_embeddings_with": "misspelt null",
    "*.checkpoint.licence": "misspelt",
    "*.checkpoint.predictor": "misspelt null",
    "*.wheel": "null",
    "*.wheel.packages.0": "misspelt",
    "*.wheel.version": "misspelt",
    "*.wheel.member": "misspelt",
    "*.wheel.bytes": "huge",
    "target.shape": "null",
    "draft.shape": "null",
    "*.precision": "null",
    "*.rounded": "null",
    "*dataset.file": "misspelt",
    "*dataset.version": "huge",
    "*dataset.licence": "misspelt",
    "*dataset.hub": "null",
    "*dataset.hub.id": "misspelt",
    "*dataset.hub.config": "misspelt null",
    "*dataset.hub.split": "misspelt",
    "*dataset.columns.0": "misspelt",
    "*dataset.prompt.template": "misspelt",
    "*dataset.prompt.preamble": "misspelt empty",
    "*dataset.min_words.text": "zero huge",
    "*.scoring.reference": "empty",
    "*.scoring.score": "null",
    "*.scoring.score.tests": "empty",
    "*.scoring.score.before": "empty",
    "*.scoring.score.function": "empty",
    "*.scoring.labels": "empty",
    "engine.papers": "empty",
    "engine.extends": "null",
    "engine.above_floor": "misspelt empty",
    "*.papers.0": "misspelt empty",
    "engine.devices": "null",
    "engine.devices.*.processors": "null",
    "*.rate.*.value": "broken",
    "*.start.*.value": "zero broken",
    "*.shapes.value": "number",
    "*.shapes.unit": "empty",
    "*.cells.0": "misspelt",
    "*.note": "misspelt empty",
    "trace.alpha": "zero negative broken",
    "trace.rate": "broken",
    "trace.seed": "zero huge",
    "trace.apps.0.name": "misspelt",
    "trace.apps.0.ttft": "null",
    "trace.apps.0.tpot": "null",
    "trace.apps.0.dataset": "misspelt",
    "device.engine": "null empty",
    "device.papers": "empty",
    "device.processors.npu.peak.*.value": "broken",
    "device.processors.npu.*.value": "zero broken",
    "device.*.points.0.0": "broken",
    "device.flash.*.value": "zero broken",
    "device.dram.*.value": "broken",
    "device.power.*.value": "zero broken",
}
"""By pattern of a place, the kinds of values that it may have."""


def allowed(place: str) -> str:
    """The kinds of values that a place may have."""
    return " ".join(kinds for pattern, kinds in ACCEPTED.items() if fnmatchcase(place, pattern))


@cache
def base(group: str) -> dict[str, Any]:
    """A valid configuration."""
    return cell_config(*BASES[group], "prompts=2", "max_tokens=6", "wandb.mode=disabled")


def with_component(group: str, name: str) -> dict[str, Any]:
    """A configuration with another component at its defaults, as Hydra composes it."""
    settings: dict[str, Any] = {"name": name}
    for field in fields(lookup(group, name)):
        assert field.default is not MISSING
        settings[field.name] = list(field.default) if isinstance(field.default, tuple) else field.default
    return {**base(group), group: settings}


def below(config: dict[str, Any], *sections: str) -> Iterator[Try]:
    """The tries below some sections of a configuration."""
    return (one for one in tries(config) if one.path[0] in sections)


COMPONENTS = [
    (group, name) for group in ("method", "compression", "probe", "service") for name in names(group)
]


OTHER_PROCESSORS = (("processors", "gpu"), ("processors", "cpu"))


@pytest.mark.parametrize(("group", "name"), COMPONENTS)
def test_a_component(group: str, name: str) -> None:
    config = with_component(group, name)
    assert faults(config, below(config, group), allowed) == ""


@pytest.mark.parametrize(
    ("kind", "sections"),
    [
        ("method", ("sampling", "target", "draft", "dataset", "labels")),
        ("method", ("wandb",)),
        ("shape", ("target",)),
        ("choice", ("dataset",)),
        ("compression", ("corpus",)),
        ("engine", ("engine",)),
        ("service", ("trace",)),
    ],
)
def test_a_section(kind: str, sections: tuple[str, ...]) -> None:
    assert faults(base(kind), below(base(kind), *sections), allowed) == ""


def test_the_settings_of_a_run() -> None:
    config = base("method")
    plain = (one for one in tries(config) if len(one.path) == 1)
    assert faults(config, plain, allowed) == ""


def test_a_device() -> None:
    """One processor and all else of a device file; other processors have the same entries."""
    config = base("method")
    some = (one for one in below(config, "device") if one.path[1:3] not in OTHER_PROCESSORS)
    assert faults(config, some, allowed) == ""
