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
    "zero": """
        *.start.*.value *dataset.min_words.text compression.alpha compression.anchors compression.lowest
        compression.pruned compression.spare_* compression.threshold cooldown device.flash.*.value
        device.power.*.value device.processors.npu.*.value method.*_decay method.ahead method.cold
        method.fallback method.hot method.least_nodes method.near_children method.outliers
        method.penalty method.prefetch method.preload method.pruned method.reach method.resident
        method.rollback method.switch method.threshold method.width method.window probe.depth probe.hot
        probe.layer probe.quantile sampling.temperature seed service.anchors skip trace.alpha trace.seed
    """,
    "negative": "compression.threshold trace.alpha",
    "broken": """
        *.rate.*.value *.start.*.value compression.step compression.threshold cooldown
        device.*.points.0.0 device.dram.*.value device.flash.*.value device.power.*.value
        device.processors.npu.*.value device.processors.npu.peak.*.value method.latency method.rollback
        method.temperature method.window sampling.temperature trace.alpha trace.rate
    """,
    "huge": """
        *.wheel.bytes *dataset.min_words.text *dataset.version method.window prompts
        sampling.temperature seed trace.seed
    """,
    "number": "*.shapes.value prompt_tokens",
    "null": """
        *.checkpoint.folder *.checkpoint.hub *.checkpoint.hub.revision *.checkpoint.predictor
        *.checkpoint.shares_embeddings_with *.precision *.rounded *.scoring.score *.wheel *dataset.hub
        device.power
        *dataset.hub.config calibrate_draft_to compression data_dir device.engine draft.shape engine
        engine.devices engine.devices.*.processors engine.extends format labels method.memory probe
        probe.depth prompt_tokens resident service target.shape trace trace.apps.0.tpot
        trace.apps.0.ttft wandb.again wandb.cells wandb.dir wandb.entity wandb.mode wandb.notes
        wandb.project wandb.tags
    """,
    "empty": """
        *.note *.papers.0 *.scoring.labels *.scoring.reference *.scoring.score.before
        *.scoring.score.function *.scoring.score.tests *.shapes.unit *dataset.prompt.preamble data_dir
        device.engine device.papers engine.above_floor engine.papers metrics wandb.notes wandb.tags
    """,
    "misspelt": """
        *.cells.0 *.checkpoint.folder *.checkpoint.hub.repo *.checkpoint.hub.revision
        *.checkpoint.licence *.checkpoint.name *.checkpoint.predictor
        *.checkpoint.shares_embeddings_with *.note *.papers.0 *.wheel.member *.wheel.packages.0
        *.wheel.version *dataset.columns.0 *dataset.file *dataset.hub.config *dataset.hub.id
        *dataset.hub.split *dataset.licence *dataset.prompt.preamble *dataset.prompt.template
        corpus.dataset.name data_dir dataset.name device.name draft.name engine.above_floor engine.name
        name outputs results target.name trace.apps.0.dataset trace.apps.0.name trace.name wandb.dir
        wandb.entity wandb.notes wandb.project
    """,
    "list": "wandb.tags",
    "unknown": "labels.promts",
}
"""By kind of value, patterns of the places that may have it. A null component is a cell of another kind."""


def allowed(place: str) -> str:
    """The kinds of values that a place may have."""
    return " ".join(
        kind
        for kind, patterns in ACCEPTED.items()
        if any(fnmatchcase(place, one) for one in patterns.split())
    )


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
