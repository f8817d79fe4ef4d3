"""LLaMA-7B as services serve it, OPT's family, and what they choose from."""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml

from repro.core.paths import conf_dir
from repro.core.registry import lookup
from repro.experiments.composing import load_components
from repro.methods.serving.service import Service, System
from repro.methods.serving.systems.services import PfsService
from repro.models.costs.model_cost import ModelCost, Shape, precision

load_components()

NAMES = (
    "attn_drop",
    "elastilm",
    "full",
    "laco",
    "layerwise",
    "llm_pruner",
    "llmlingua2_cs",
    "pfs",
    "shortgpt",
)


def of_conf(*parts: str) -> Any:
    return yaml.safe_load(conf_dir().joinpath(*parts).with_suffix(".yaml").read_text(encoding="utf-8"))


def shape(name: str) -> Shape:
    return Shape.parse(of_conf("model", "shape", name))


SEVEN = ModelCost(shape("llama_7b"), precision("fp16"))
ATTENTION, MLP = 4 * 4096**2, 3 * 4096 * 11008
LAYER = ATTENTION + MLP
"""Weights of one of its layers."""
TABLES = 2 * 4096 * 32000
HELD = 2 * (32 * LAYER + TABLES)
"""Bytes of all of it."""
PREDICTORS = 32 * 128 * (4096 + 11008)
"""Weights of predictors of rank 128."""
FAMILY = {
    name: ModelCost(shape(of_conf("model", name)["defaults"][1]["shape"]), precision("fp16"))
    for name in PfsService.family
}


def built(name: str, **given: Any) -> Service:
    made: Service = lookup("service", name)(**given)
    return made


def system(name: str, full: ModelCost = SEVEN, **given: Any) -> System:
    made = built(name, **given)
    return made.system(full, {name: FAMILY[name] for name in made.family})


@cache
def default(name: str) -> System:
    return system(name)


def moved(found: System, level: float) -> dict[str, float]:
    """Bytes that a switch moves, by resource."""
    return {op.on: op.bytes for op in found.switching.ops(found.levels[level], "cpu")}
