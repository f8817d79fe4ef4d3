"""What an experiment needs under `weights=own`: checkpoints, their sizes, memory.

Must not know how checkpoints are fetched, nor what a cell does with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.core.registry import require_choice
from repro.experiments.plan import experiment_names, plain, planning
from repro.models.checkpoints import hub
from repro.models.checkpoints.origin import Checkpoint, find_local
from repro.models.costs.model_cost import Shape
from repro.records.build_cache import Unavailable
from repro.scenarios.base import component
from repro.scenarios.sections import OWN_WEIGHTS

BYTES_OF_DTYPE = {"float32": 4, "bfloat16": 2}
STORED_BYTES = 2
"""Bytes of a weight on the hub, where nothing is known but a model's shape."""


@dataclass(frozen=True)
class NeededModel:
    """A checkpoint of an experiment.

    Attributes:
        checkpoint: its file in conf.
        parameters: number of weights, of the shape that is billed.
        size_bytes: on the hub, as the hub says if it answers, else by the number of weights.
        revision: the commit that the hub has now, or the revision of conf.
        needs_login: whether the licence has to be accepted before.
        at_hand: the folder of a copy on this machine.
    """

    checkpoint: Checkpoint
    parameters: int
    size_bytes: int = 0
    revision: str = "main"
    needs_login: bool = False
    at_hand: Path | None = None


@dataclass(frozen=True)
class Needs:
    """What an experiment needs: its checkpoints, and the bytes of weights of its largest cell."""

    experiment: str
    models: tuple[NeededModel, ...]
    memory_bytes: int

    def lines(self) -> Iterator[str]:
        """A line a checkpoint, and the memory."""
        total_bytes = sum(model.size_bytes for model in self.models)
        checkpoints = f"{len(self.models)} checkpoints, {total_bytes / 1e9:.1f} GB"
        yield f"{self.experiment} with weights=own: {checkpoints}"
        for model in self.models:
            repo = model.checkpoint.hub.repo if model.checkpoint.hub else model.checkpoint.folder
            login = "; accept it on the repository's page and log in (HF_TOKEN)" if model.needs_login else ""
            folder = f"; at hand in {model.at_hand}" if model.at_hand else ""
            yield (
                f"  {model.checkpoint.name:26}{repo} @ {model.revision}, {model.size_bytes / 1e9:.1f} GB, "
                f"{model.checkpoint.licence}{login}{folder}"
            )
        yield (
            f"memory: {self.memory_bytes / 1e9:.1f} GB of weights in the largest cell, in its models' dtype; "
            "target.dtype=bfloat16 halves a target in float32"
        )


def needs(experiment: str) -> Needs:
    """What an experiment needs with its models' own weights.

    Raises:
        InputError: there is no such experiment, or no cell of it computes with weights.
    """
    require_choice("experiment", experiment, experiment_names())
    command = [f"experiment={experiment}", f"weights={OWN_WEIGHTS}"]
    models: dict[str, NeededModel] = {}
    memory_bytes = 0
    with planning(conf_dir()) as plan:
        for cell in plan.jobs(command):
            config = plain(plan.unresolved_config([*command[:1], *cell]), "labels")
            cell_models = dict(_models(config))
            models |= {model.checkpoint.name: model for model in cell_models.values()}
            sizes = [
                model.parameters * BYTES_OF_DTYPE.get(str(config[role]["dtype"]), BYTES_OF_DTYPE["float32"])
                for role, model in cell_models.items()
            ]
            memory_bytes = max(memory_bytes, sum(sizes))
    if not models:
        raise InputError(f"no cell of {experiment} computes with weights: it has costs alone, or no cells")
    return Needs(experiment, tuple(_with_hub_facts(models[name]) for name in sorted(models)), memory_bytes)


def _models(config: Mapping[str, Any]) -> Iterator[tuple[str, NeededModel]]:
    """The models of a cell that compute, by role."""
    decodes = not any(config.get(name) for name in ("compression", "probe", "service"))
    roles = component("method", config["method"]).places() if decodes else ()
    for role in dict.fromkeys(("target", *roles)) if config["target"].get("checkpoint") else ():
        checkpoint = Checkpoint.from_mapping(config[role]["checkpoint"])
        yield role, NeededModel(checkpoint, _shape(config[role], checkpoint.name).parameters)


def _shape(model: Mapping[str, Any], checkpoint: str) -> Shape:
    """The shape that a model is billed by; of one that is billed by its checkpoint, another file's of it."""
    if model.get("shape"):
        return Shape.parse(model["shape"])
    for path in sorted((conf_dir() / "model").glob("*.yaml")):
        defaults = [part for part in read_mapping(path).get("defaults", ()) if isinstance(part, dict)]
        choices = {group: choice for part in defaults for group, choice in part.items()}
        own_checkpoint = OmegaConf.create({"weights": OWN_WEIGHTS, "own": choices.get("checkpoint")}).own
        if own_checkpoint == checkpoint and "shape" in choices:
            return Shape.parse(read_mapping(conf_dir() / "model" / "shape" / f"{choices['shape']}.yaml"))
    raise InputError(f"no file of conf/model bills {checkpoint} by a shape, so its size is unknown")


def _with_hub_facts(model: NeededModel) -> NeededModel:
    """With what the hub says, or conf where the hub does not answer."""
    checkpoint, repo = model.checkpoint, model.checkpoint.hub
    at_hand = find_local(checkpoint)
    if at_hand is None and repo is not None:
        at_hand = hub.cached_snapshot(repo, checkpoint.shares_embeddings_with is None)
    size_bytes, needs_login = model.parameters * STORED_BYTES, "gated" in checkpoint.licence
    model = replace(model, size_bytes=size_bytes, needs_login=needs_login, at_hand=at_hand)
    if repo is None:
        return model
    try:
        facts = hub.facts(repo)
    except Unavailable:
        return replace(model, revision=repo.revision or "main")
    size_bytes = sum(facts.sizes.values())
    return replace(model, size_bytes=size_bytes, revision=facts.commit, needs_login=facts.gated)
