"""Sampled text has the target's distribution in every method, with its pruning on, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.device.emulated import EmulatedDevice
from repro.methods.base import Method, Request
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.methods.ghidorah.ghidorah import Ghidorah, MedusaEM
from repro.methods.lever.exit_predictor import Candidates, ExitScores
from repro.methods.lever.lever import Lever
from repro.methods.plain.autoregressive import FlashAutoregressive, Standard
from repro.methods.speculative.bld import BigLittle
from repro.methods.speculative.chain_sd import ChainSD, SpeculativeDecoding
from repro.methods.speculative.corrected import Corrected
from repro.methods.speculative.drafting.head_ranks import Calibration
from repro.methods.speculative.medusa import Medusa
from repro.methods.speculative.nav import Nav
from repro.methods.speculative.opt_tree import OptTree
from repro.methods.speculative.prompt_lookup import PromptLookup
from repro.methods.speculative.specinfer import SpecInfer
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.forward.network import KnownStep, Logits, Network, Step
from repro.models.runtime.engine import Engine
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import Sampling
from tiny import MODEL_COST, TableNetwork, chance_of, seeded, toy
from tiny_heads import TableHeads

VOCAB = 3
TOKENS = 3
PROMPT = (0, 1)
HEADS = 3
FEW, MANY = 400, 6_000
HOT, WARM, COOL = Sampling(1.0), Sampling(0.6, 0.85), Sampling(0.7, 0.8)
WIDTH = 8
"""Hidden size of the hidden states that a predictor sees."""

PRUNINGS = ("full", "without_shadow", "without_safeguards")
SMALL: dict[str, Any] = {"depth": 3, "limit": 8, "candidates": 3, "threshold": 0.3, "least_nodes": 2}
METHODS: dict[str, Method] = {
    "std": Standard(),
    "flash_ar": FlashAutoregressive(),
    "corrected": Corrected(),
    "chain_sd": ChainSD(length=2),
    "sp": SpeculativeDecoding(length=3),
    "prompt_lookup": PromptLookup(length=3),
    "specinfer": SpecInfer(expansion=(2, 2)),
    "specinfer of two drafts": SpecInfer(expansion=(2, 1), drafts=2),
    "edgellm": EdgeLLM(limit=3, choices=2, ahead=2),
    "edgellm in branches": EdgeLLM(limit=4, choices=2, ahead=2, verification="branches"),
    "opt_tree": OptTree(nodes=4, threshold=0.0, depth=3),
    "medusa": Medusa(width=4),
    "medusa_em": MedusaEM(width=4),
    "ghidorah": Ghidorah(width=4),
    **{f"lever {pruning}": Lever(pruning=pruning, **SMALL) for pruning in (*PRUNINGS, "off")},
    "lever eager": Lever(projection="eager_npu", **SMALL),
    "lever opt_tree": Lever(construction="opt_tree", **SMALL),
    "lever specinfer off": Lever(construction="specinfer", pruning="off", **SMALL),
}
QUICK = [
    *(("std", HOT), ("chain_sd", HOT), ("chain_sd", COOL), ("edgellm", HOT), ("specinfer", HOT)),
    *(("specinfer of two drafts", HOT), ("specinfer of two drafts", COOL), ("prompt_lookup", HOT)),
    *(("opt_tree", HOT), ("medusa", HOT), ("lever full", HOT), ("lever opt_tree", HOT)),
]
"""What the fast suite samples; `--slow` samples all methods, more often and at two temperatures."""


class HiddenStep(KnownStep):
    """Known rows whose hidden states are a function of the sequence."""

    def __init__(self, table: TableNetwork, wanted: Sequence[Prefix]) -> None:
        super().__init__([Logits(table.logits(text)) for text in wanted])
        self._wanted = list(wanted)

    def hidden(self) -> Tensor:
        return torch.stack([torch.randn(WIDTH, generator=seeded(text, 77)) for text in self._wanted])

    def drop(self, kept: Sequence[int]) -> None:
        super().drop(kept)
        self._wanted = [self._wanted[i] for i in kept]


class HiddenTable(TableNetwork):
    """A table with as many layers as are billed, so that a pass may be pruned in its middle."""

    depth = MODEL_COST.shape.layers

    def begin(self, wanted: Sequence[Prefix], branches: Sequence[Prefix] = ()) -> Step:
        return HiddenStep(self, wanted)


@dataclass
class Scored(ExitScores):
    """A predictor that likes a token as much as a hidden state says."""

    layer: int = 2

    def scores(
        self, prefixes: Sequence[Prefix], candidates: Sequence[Candidates], hidden: Callable[[], Tensor]
    ) -> list[list[float]]:
        return [(2.0 * row[list(tokens)]).tolist() for row, tokens in zip(hidden(), candidates, strict=True)]


def opened(method: Method, device: EmulatedDevice) -> dict[str, Session]:
    """A method's sessions: tables of random logits, and Medusa heads where it reads them."""
    sessions: dict[str, Session] = {}
    for seed, (role, place) in enumerate(method.places().items(), start=1):
        network: Network = (HiddenTable if role == "target" else TableNetwork)(VOCAB, seed=seed)
        model_cost = MODEL_COST
        if role == "draft" and isinstance(method, Medusa):
            network = TableHeads(HEADS, VOCAB)
            model_cost = ModelCost(Shape.of_medusa(HEADS, 8, VOCAB, tied=True), precision("fp32"))
        engine = Engine(role, device, model_cost, network, place)
        session = sessions[role] = Session(engine, Scored() if place.beside else None)
        if isinstance(method, Medusa):
            session.beside = Calibration(tuple((0.5, 0.3, 0.1) for _ in range(HEADS)))
    return sessions


def sampled(method: Method, sampling: Sampling, draws: int) -> tuple[Tensor, int]:
    """How often each triple of first tokens came, `[3, 3, 3]`, and how many rows were pruned."""
    device = EmulatedDevice(toy())
    sessions = opened(method, device)
    serving = device.play(method.prepare(device, sessions))
    counts, pruned = torch.zeros((VOCAB,) * TOKENS), 0
    for seed in range(draws):
        request = Request("", PROMPT, TOKENS, sampling=sampling, seed=seed)
        for session in sessions.values():
            session.start(request.prefix)
            session.passes.clear()
        made = device.play(serving.serve(request, device, sessions))
        counts[tuple(made.tokens)] += 1
        pruned += sum(one.rows - one.last_rows for one in sessions["target"].passes)
    return counts, pruned


@cache
def joint(sampling: Sampling) -> Tensor:
    """The probability of each triple, from the target's logits alone."""
    target, out = HiddenTable(VOCAB, seed=1), torch.zeros((VOCAB,) * TOKENS)
    for triple in product(range(VOCAB), repeat=TOKENS):
        text, chance = Prefix.of(PROMPT), 1.0
        for token in triple:
            chance *= float(sampling.probabilities(target.logits(text))[token])
            text = text.then(token)
        out[triple] = chance
    return out


def prunes(method: Method) -> bool:
    return isinstance(method, Lever) and method.pruning != "off"


@pytest.mark.parametrize(("name", "sampling"), QUICK)
def test_sampled_text_has_the_targets_distribution(name: str, sampling: Sampling) -> None:
    counts, pruned = sampled(METHODS[name], sampling, FEW if name.startswith(("medusa", "lever")) else 750)
    assert chance_of(counts, joint(sampling)) > 1e-3
    assert bool(pruned) == prunes(METHODS[name]), "pruning must have happened where it is on"


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [HOT, WARM], ids=["T=1", "T=0.6, top-p 0.85"])
@pytest.mark.parametrize("name", METHODS)
def test_often_sampled_text_has_the_targets_distribution(name: str, sampling: Sampling) -> None:
    counts, pruned = sampled(METHODS[name], sampling, MANY)
    assert chance_of(counts, joint(sampling)) > 1e-4
    assert bool(pruned) == prunes(METHODS[name])


def test_pruned_draws_are_biased_and_hence_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `check` refuses: single draws of the draft that pruning drops by their token."""
    method = Lever(construction="specinfer", **(SMALL | {"least_nodes": 1}), pruning="without_safeguards")
    with pytest.raises(InputError, match=r"temperature is 1.0.*construction=specinfer.*method.pruning=off"):
        method.check(HOT)
    method.check(Sampling())
    device = EmulatedDevice(toy())
    sessions = opened(method, device)
    with pytest.raises(InputError, match="specinfer"):
        device.play(method.serve(Request("", PROMPT, TOKENS, sampling=HOT), device, sessions))
    single = SpecInfer(expansion=(1, 1))
    monkeypatch.setattr("repro.methods.lever.lever.OTHER_METHODS", {"specinfer": single})
    counts, pruned = sampled(method, HOT, 4 * FEW)
    assert pruned
    assert chance_of(counts, joint(HOT)) < 1e-6


@pytest.mark.parametrize("method", [Nav(), BigLittle()])
def test_greedy_methods_refuse_a_temperature(method: Method) -> None:
    method.check(replace(HOT, temperature=0.0))
    with pytest.raises(InputError, match=r"sampling.temperature is 1.0"):
        method.check(HOT)
