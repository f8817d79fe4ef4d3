"""What an experiment needs under `weights=own`: checkpoints and their sizes, memory, hours.

Must not know how checkpoints are fetched, nor what a cell does with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.registry import unknown
from repro.core.yaml_file import read_mapping
from repro.experiments.cell_configs import plain
from repro.experiments.cli import experiment_names, needless
from repro.experiments.compositions import composing_in
from repro.experiments.progress.timings import stopwatch, work_of
from repro.models.checkpoints import hub
from repro.models.checkpoints.origin import Checkpoint, find_local
from repro.models.costs.model_cost import Shape
from repro.records.build_cache import Unavailable
from repro.scenarios.base import component
from repro.scenarios.sections import OWN_WEIGHTS

BYTES = {"float32": 4, "bfloat16": 2}
STORED_BYTES = 2
"""Bytes of a weight on the hub, where nothing is known but a model's shape."""

EXAMPLE_TOKENS = 400
"""Tokens that a model reads for an example whose choices it scores, a middle of our datasets."""

GPU_RATES = (2e12, 4e13)
"""Bytes and operations a second in float32 of a large GPU, some two thirds of an H100's."""


@dataclass(frozen=True)
class ModelWork:
    """A checkpoint of an experiment, and what it computes there.

    Attributes:
        checkpoint: its file in conf.
        parameters: number of weights, of the shape that is billed.
        tokens: decoded one after the other, each a pass over all weights.
        examples: tokens that are read side by side.
        size_bytes: on the hub, as the hub says if it answers, else by the number of weights.
        revision: the commit that the hub has now, or the revision of conf.
        needs_login: whether the licence has to be accepted before.
        at_hand: the folder of a copy on this machine.
    """

    checkpoint: Checkpoint
    parameters: int
    tokens: int = 0
    examples: int = 0
    size_bytes: int = 0
    revision: str = "main"
    needs_login: bool = False
    at_hand: Path | None = None

    def hours(self, rates: tuple[float, float]) -> float:
        """How long it takes at so many bytes and operations a second; a batch of one, each token once."""
        decoding_s = self.tokens * self.parameters * BYTES["float32"] / rates[0]
        return (decoding_s + self.examples * 2 * self.parameters / rates[1]) / 3600


@dataclass(frozen=True)
class Needs:
    """What an experiment needs: its checkpoints, and the bytes of weights of its largest cell."""

    experiment: str
    models: tuple[ModelWork, ...]
    memory_bytes: int

    def lines(self, host: tuple[float, float]) -> Iterator[str]:
        """A table, the memory and the hours; `host` are this machine's bytes and operations a second."""
        total = sum(model.size_bytes for model in self.models)
        yield f"{self.experiment} with weights=own: {len(self.models)} checkpoints, {total / 1e9:.1f} GB"
        for model in self.models:
            repo = model.checkpoint.hub.repo if model.checkpoint.hub else model.checkpoint.folder
            login = "; accept it on the repository's page and log in (HF_TOKEN)" if model.needs_login else ""
            place = f"; at hand in {model.at_hand}" if model.at_hand else ""
            yield (
                f"  {model.checkpoint.name:26}{repo} @ {model.revision}, {model.size_bytes / 1e9:.1f} GB, "
                f"{model.checkpoint.licence}{login}{place}"
            )
        hours = [sum(model.hours(rates) for model in self.models) for rates in (host, GPU_RATES)]
        yield (
            f"memory: {self.memory_bytes / 1e9:.1f} GB of weights in the largest cell, in its models' dtype; "
            "target.dtype=bfloat16 halves a target in float32"
        )
        yield (
            f"time: about {hours[0]:.1f} h on this host ({host[0] / 1e9:.0f} GB/s, {host[1] / 1e9:.0f} "
            f"GFLOP/s measured now), {hours[1]:.1f} h on a large GPU (host=cuda), without prompts and drafts "
            "beside the target's own text; fewer prompts= take less"
        )


def needs(experiment: str) -> Needs:
    """What an experiment needs with its models' own weights.

    Raises:
        InputError: there is no such experiment, or no cell of it computes with weights.
    """
    if experiment not in (known := experiment_names()):
        raise InputError(unknown("experiment", experiment, known))
    command = [f"experiment={experiment}", f"weights={OWN_WEIGHTS}"]
    works: dict[tuple[str, ...], ModelWork] = {}
    memory_bytes = 0
    with composing_in(conf_dir(), needless) as compositions:
        for cell in compositions.cells(command):
            config = plain(compositions.config([*command[:1], *cell]), "labels")
            found = list(_works(config))
            works |= found
            memory_bytes = max(memory_bytes, sum(_held_bytes(config[key[0]], work) for key, work in found))
    if not works:
        raise InputError(f"no cell of {experiment} computes with weights: it has costs alone, or no cells")
    return Needs(experiment, tuple(map(_looked_up, _summed(works.values()))), memory_bytes)


def _works(config: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], ModelWork]]:
    """What each model of a cell computes, by what other cells have in common with it."""
    work = work_of(config)
    decodes = not any(config.get(name) for name in ("compression", "probe", "service"))
    roles = component("method", config["method"]).places() if decodes else ()
    for role in dict.fromkeys(("target", *roles)) if config["target"].get("checkpoint") else ():
        model = config[role]
        checkpoint = Checkpoint.from_mapping(model["checkpoint"])
        method = "" if decodes and role == "target" else work.method  # the target's own text is asked once
        key = (role, checkpoint.name, work.dataset, str(work.amount), method)
        tokens, examples = (work.amount, 0) if decodes else (0, work.amount * EXAMPLE_TOKENS)
        yield key, ModelWork(checkpoint, _shape(model, checkpoint.name).parameters, tokens, examples)


def _held_bytes(model: Mapping[str, Any], work: ModelWork) -> int:
    return work.parameters * BYTES.get(str(model["dtype"]), BYTES["float32"])


def _shape(model: Mapping[str, Any], checkpoint: str) -> Shape:
    """The shape that a model is billed by; of one that is billed by its checkpoint, another file's of it."""
    if model.get("shape"):
        return Shape.parse(model["shape"])
    for path in sorted((conf_dir() / "model").glob("*.yaml")):
        defaults = [part for part in read_mapping(path).get("defaults", ()) if isinstance(part, dict)]
        parts = {group: choice for part in defaults for group, choice in part.items()}
        chosen = OmegaConf.create({"weights": OWN_WEIGHTS, "own": parts.get("checkpoint")}).own
        if chosen == checkpoint and "shape" in parts:
            return Shape.parse(read_mapping(conf_dir() / "model" / "shape" / f"{parts['shape']}.yaml"))
    raise InputError(f"no file of conf/model bills {checkpoint} by a shape, so its size is unknown")


def _summed(works: Iterable[ModelWork]) -> list[ModelWork]:
    """One for each checkpoint, with all that it computes."""
    found: dict[str, ModelWork] = {}
    for work in works:
        before = found.get(work.checkpoint.name, replace(work, tokens=0, examples=0))
        found[work.checkpoint.name] = replace(
            before, tokens=before.tokens + work.tokens, examples=before.examples + work.examples
        )
    return [found[name] for name in sorted(found)]


def _looked_up(work: ModelWork) -> ModelWork:
    """With what the hub says, or conf where the hub does not answer."""
    checkpoint, repo = work.checkpoint, work.checkpoint.hub
    needs_login = "gated" in checkpoint.licence
    guessed = replace(work, size_bytes=work.parameters * STORED_BYTES, needs_login=needs_login)
    at_hand = find_local(checkpoint)
    if at_hand is None and repo is not None:
        at_hand = hub.cached(repo, checkpoint.shares_embeddings_with is None)
    if repo is None:
        return replace(guessed, at_hand=at_hand)
    guessed = replace(guessed, at_hand=at_hand, revision=repo.revision or "main")
    try:
        facts = hub.facts(repo)
    except Unavailable:
        return guessed
    size_bytes = sum(facts.sizes.values())
    return replace(guessed, size_bytes=size_bytes, revision=facts.commit, needs_login=facts.gated)


def host_rates() -> tuple[float, float]:
    """Bytes and operations a second of this machine in float32, of a matrix times a vector and a matrix."""
    matrix, vector = torch.ones(4096, 4096), torch.ones(4096)
    square = torch.ones(1024, 1024)
    return (
        matrix.numel() * 4 / _seconds(lambda: matrix @ vector),
        2 * 1024**3 / _seconds(lambda: square @ square),
    )


def _seconds(do: Callable[[], object], times: int = 5) -> float:
    """The least of several runs after a first one."""
    do()
    taken = []
    for _ in range(times):
        clock = stopwatch()
        do()
        taken.append(clock())
    return min(taken)
