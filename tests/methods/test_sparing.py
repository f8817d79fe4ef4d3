"""A verification that drops rows on its way or projects them one by one says what a whole one says."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from repro.device.emulated import Device, EmulatedDevice
from repro.methods.base import Request
from repro.methods.lever.exit_predictor import Candidates, ExitScores
from repro.methods.lever.lever import PROJECTIONS, SCHEDULES, Lever
from repro.methods.lever.sparing_verifier import SparingVerifier
from repro.models.forward.chooser import Greedy
from repro.models.forward.network import DecoderNetwork, Network
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT, STREAMED, Placement
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree
from repro.models.transformer.decoder import Decoder
from tiny import DEVICES, NoisedNetwork, alone, decoder, model_cost_of, plain, toy

FAMILY = "llama-3.1"
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)


class Chosen:
    """A pruner that keeps what a function of the tree says, and what hidden rows it saw."""

    def __init__(
        self, keep: Callable[[TokenTree], list[int]], layer: int = 1, reads_hidden: bool = True
    ) -> None:
        self.layer = layer
        self._keep = keep
        self._reads_hidden = reads_hidden
        self.saw: Tensor | None = None

    def keep(self, tree: TokenTree, hidden: Callable[[], Tensor]) -> list[int]:
        self.saw = hidden() if self._reads_hidden else None
        return self._keep(tree)

    def score_count(self, tree: TokenTree) -> int:
        return len(tree)


def a_tree(made: Decoder, seed: int, size: int = 12) -> TokenTree:
    """A random tree below the prompt and a few more tokens; some of it is what the decoder would say."""
    chance = random.Random(seed)
    tree = TokenTree(Prefix.of(PROMPT).then(7))
    while len(tree) < size:
        parent = chance.randrange(len(tree))
        likely = int(alone(made, tree.prefixes[parent].tokens()).argmax())
        tree.grow(parent, likely if chance.random() < 0.5 else chance.randrange(made.config.vocab))
    return tree


def some(seed: int) -> Callable[[TokenTree], list[int]]:
    """Keeps each node with its parent by chance."""

    def keep(tree: TokenTree) -> list[int]:
        chance, kept = random.Random(seed), [0]
        for node in range(1, len(tree)):
            if tree.parents[node] in kept and chance.random() < 0.6:
                kept.append(node)
        return kept

    return keep


def begun(
    made: Decoder,
    network: Network,
    device: Device,
    place: Placement = RESIDENT,
    tree: TokenTree | None = None,
) -> Session:
    """A session that has read the prompt."""
    session = Session(Engine("target", device, model_cost_of(made), network, place))
    session.start(Prefix.of(PROMPT))
    assert tree.root.parent
    device.play(session.forward([tree.root.parent]))
    session.keep(tree.root)
    return session


@pytest.mark.parametrize("family", [FAMILY, "mistral", "gemma-2"])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("open_device", DEVICES.values(), ids=DEVICES)
def test_what_was_dropped_half_way_leaves_no_trace(
    open_device: Callable[[], Device], seed: int, family: str
) -> None:
    """Rows of the kept nodes, and all rows of a later pass, are those of sequences on their own."""
    made, device = decoder(family), open_device()
    network = DecoderNetwork(made)
    tree = a_tree(made, seed)
    session = begun(made, network, device, tree=tree)
    pruner = Chosen(some(seed))
    verification = device.play(session.verify(tree, Greedy(), SparingVerifier(pruner)))
    kept = some(seed)(tree)
    assert verification.tree.prefixes == [tree.prefixes[node] for node in kept]
    own = [int(alone(made, p.tokens()).argmax()) for p in verification.tree.prefixes]
    assert verification.text == verification.tree.prefixes[verification.path[-1]].then(
        own[verification.path[-1]]
    )
    assert session.passes[-1].rows == len(tree)
    assert session.passes[-1].last_rows == len(kept)
    after = [
        verification.text,
        verification.text.then(2),
        verification.text.then(5),
        verification.text.then(2).then(8),
    ]
    for prefix, row in zip(after, device.play(session.forward(after)), strict=True):
        assert torch.allclose(row.logits, alone(made, prefix.tokens()), atol=1e-4)


@pytest.mark.parametrize("place", [RESIDENT, STREAMED], ids=["resident", "streamed"])
def test_upper_layers_and_the_projection_are_billed_for_what_is_left(place: Placement) -> None:
    made, device = decoder(FAMILY), EmulatedDevice(toy())
    tree = a_tree(made, 3)
    session = begun(made, DecoderNetwork(made), device, place, tree=tree)
    before = len(device.trace.spans)
    verification = device.play(
        session.verify(tree, Greedy(), SparingVerifier(Chosen(some(3), layer=2), on_demand=True))
    )
    spans = device.trace.spans[before:]
    layers = sorted((s.name, s.rows) for s in spans if s.kind == "layer")
    kept = len(verification.tree)
    assert {rows for _, rows in layers} == {len(tree), kept}
    assert max(rows for name, rows in layers if "3" in name) == kept
    assert [s.rows for s in spans if s.kind == "head"] == [1] * len(verification.path)
    assert [s.rows for s in spans if s.kind == "prune"] == [len(tree)]


class Scores(ExitScores):
    """A predictor whose scores are chance."""

    def __init__(self) -> None:
        self.layer = 2

    def scores(
        self, prefixes: Sequence[Prefix], candidates: Sequence[Candidates], hidden: Callable[[], Tensor]
    ) -> list[list[float]]:
        chance = torch.Generator().manual_seed(len(prefixes))
        return [torch.randn(len(tokens), generator=chance).tolist() for tokens in candidates]


CHOICES = [
    *({"construction": name} for name in ("greedy", "opt_tree", "specinfer")),
    *({"schedule": name} for name in SCHEDULES),
    *({"projection": name} for name in PROJECTIONS),
    *({"pruning": name} for name in ("full", "without_shadow", "without_safeguards", "off")),
    {"batch": 1, "threshold": 0.9, "least_nodes": 0, "near_children": 0},
]


@pytest.mark.parametrize("changes", CHOICES, ids=str)
@pytest.mark.parametrize("strength", [0.2, 1.0])
def test_levers_text_is_the_targets(changes: dict[str, object], strength: float) -> None:
    """With a predictor that knows nothing, so that right tokens are dropped all the time."""
    made, asked = decoder(FAMILY), Request("", PROMPT, 24)
    method = Lever(**changes)  # type: ignore[arg-type]
    device = EmulatedDevice(toy())
    networks = {"target": DecoderNetwork(made), "draft": NoisedNetwork(DecoderNetwork(made), strength)}
    model_costs = dict.fromkeys(networks, model_cost_of(made))
    sessions = {
        role: Session(Engine(role, device, model_costs[role], networks[role], place))
        for role, place in method.places().items()
    }
    if method.places()["target"].beside:
        sessions["target"].beside = Scores()
    serving = device.play(method.prepare(device, sessions))
    for request in (asked, Request("", PROMPT[::-1], 9)):
        for session in sessions.values():
            session.start(Prefix.of(request.prompt))
        made_of = device.play(serving.serve(request, device, sessions))
        assert made_of.tokens == plain(made, request)
        rounds = made_of.rounds
        assert all(r.possible is not None and r.possible >= r.accepted for r in rounds)
        if method.pruning == "off":
            assert all(r.possible == r.accepted for r in rounds)
        assert sum(r.emitted for r in rounds) + 1 == len(made_of.tokens)
