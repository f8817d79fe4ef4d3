"""Every lossless method's tokens are the target's own greedy ones, for every family, however wrong the draft.

Drafts are noised targets, so that no, partial and full acceptance all occur. Everything computes in fp32.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from itertools import product

import pytest
import torch

from repro.device.cost import FREE_MACHINE
from repro.device.emulated import Device, EmulatedDevice
from repro.methods.base import Generation, Method, Request
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.methods.plain.autoregressive import FlashAutoregressive, Standard
from repro.methods.speculative.chain_sd import ChainSD, SpeculativeDecoding
from repro.methods.speculative.corrected import Corrected
from repro.methods.speculative.nav import Nav
from repro.methods.speculative.opt_tree import OptTree
from repro.methods.speculative.prompt_lookup import PromptLookup
from repro.methods.speculative.specinfer import SpecInfer
from repro.models.forward.chooser import Greedy
from repro.models.forward.network import DecoderNetwork, Network
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import Sampling
from repro.models.tokens.tree import TokenTree
from tiny import NoisedNetwork, TableNetwork, alone, answer, decoder, here, model_cost_of, plain, toy
from tiny_families import FAMILIES, VOCAB

STRENGTHS = (0.0, 0.2, 20.0)


TOKENS = 9


# As in test_families: rounding moves these logits by a few 1e-5, a misplaced part by 1e-2.
TOLERANCE = 1e-4


CHAINS = [ChainSD(length=length) for length in (1, 4, 8)]


LOOK_UPS = [PromptLookup(), PromptLookup(ngram=1, length=3)]


TREES = [
    EdgeLLM(provisional=provisional, choices=choices, update=update, verification=form, limit=4, ahead=3)
    for provisional, choices, update, form in product(
        ("gaps", "naive", "never"), (1, 3), ("exponential", "printed"), ("tree", "branches")
    )
]


ABLATED = [
    EdgeLLM(navigation=False, length=3, limit=4),
    EdgeLLM(fallback=False, length=4, choices=3),
    EdgeLLM(fallback=False, navigation=False, provisional="never", length=4),
]


EXPANSIONS = [
    SpecInfer(expansion=(1, 2, 2)),
    SpecInfer(expansion=(2, 3), drafts=2),
    SpecInfer(expansion=(1, 1, 2, 1), drafts=3),
]


def request(family: str, seed: int = 0, **changes: object) -> Request:
    chance = random.Random(f"{family} {seed}")
    prompt = tuple(chance.randrange(VOCAB) for _ in range(9))
    return Request(**{"id": f"{seed}", "prompt": prompt, "max_tokens": TOKENS, **changes})


@cache
def truth(family: str, seed: int = 0) -> list[int]:
    return plain(decoder(family), request(family, seed))


@cache
def said(family: str) -> dict[bytes, torch.Tensor]:
    return {}


def networks(family: str, strength: float) -> dict[str, Network]:
    """The target and three drafts of it, whose noises differ."""
    drafts = {
        role: NoisedNetwork(DecoderNetwork(decoder(family)), strength, said(family), seed=seed)
        for seed, role in enumerate(("draft", "draft_2", "draft_3"))
    }
    return {"target": DecoderNetwork(decoder(family)), **drafts}


def speculate(
    method: Method, family: str, strength: float, device: Device, seed: int = 0, **changes: object
) -> Generation:
    opened = networks(family, strength)
    model_costs = dict.fromkeys(opened, model_cost_of(decoder(family)))
    return answer(method, request(family, seed, **changes), device, opened, model_costs)


def kinds(generation: Generation) -> Counter[str]:
    """How often a round's draft was accepted whole (to the end of some branch), in part, or not at all."""
    seen: Counter[str] = Counter()
    for r in generation.rounds:
        seen["none" if not r.accepted else "full" if r.accepted == r.drafted else "partial"] += 1
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_chains_and_trees_emit_the_targets_own_tokens(family: str) -> None:
    chains: Counter[str] = Counter()
    trees: Counter[str] = Counter()
    # Every tree method meets one strength here and all of them over the families.
    turn = list(FAMILIES).index(family)
    cases = [(method, strength) for method in CHAINS for strength in STRENGTHS]
    cases += [
        (method, STRENGTHS[(i + turn) % 3])
        for i, method in enumerate([*TREES, *ABLATED, *EXPANSIONS, *LOOK_UPS])
    ]
    for method, strength in cases:
        made = speculate(method, family, strength, EmulatedDevice(toy()))
        assert made.tokens == truth(family), f"{method} at noise {strength}"
        (chains if isinstance(method, ChainSD) else trees).update(kinds(made))
    assert set(chains) == {"none", "partial", "full"}, f"the chains of {family} were not mixed: {chains}"
    assert set(trees) >= {"none", "partial"}, f"the trees of {family} were not mixed: {trees}"


HERE = [
    EdgeLLM(provisional=provisional, verification=form, resident=1.0, choices=3, limit=4, ahead=3)
    for provisional, form in product(("gaps", "naive", "never"), ("tree", "branches"))
]


HERE += [
    ChainSD(resident=1.0, length=4),
    SpecInfer(resident=1.0, expansion=(1, 2, 1), drafts=2),
    PromptLookup(resident=1.0),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_also_on_this_machines_own_clock(family: str) -> None:
    device = here()
    turn = list(FAMILIES).index(family)
    for i, method in enumerate(HERE):
        strength = STRENGTHS[(i + i // 3 + turn) % 3]  # every method meets every strength over the families
        assert speculate(method, family, strength, device).tokens == truth(family), f"{method}"
    device.close()


def random_tree(text: Prefix, right: list[int], chance: random.Random, size: int = 14) -> TokenTree:
    """Nodes at random places; now and then one says what the target will say."""
    tree, luck = TokenTree(text), chance.choice((0.0, 0.5, 0.9))
    while len(tree) < size:
        parent = chance.randrange(len(tree))
        depth = tree.depth(parent)
        on_way = [tree.token(n) for n in tree.path(parent)[1:]] == right[:depth]
        is_right = on_way and depth < len(right) and chance.random() < luck
        tree.grow(parent, right[depth] if is_right else chance.randrange(VOCAB), -1.0)
    return tree


def verify_random_trees(family: str, seed: int) -> tuple[list[int], float, set[str]]:
    """Verify random trees to the answer's end: its tokens, the worst logit error, what acceptance did."""
    made, chance, right = decoder(family), random.Random(seed), truth(family)
    device = EmulatedDevice(toy())
    session = Session(Engine("target", device, model_cost_of(made), DecoderNetwork(made), RESIDENT))
    prompt = request(family).prompt
    worst, seen, count = 0.0, set(), len(prompt)

    async def serve() -> list[int]:
        nonlocal worst
        text = Prefix.of(prompt)
        (row,) = await session.forward([text])
        text = text.then(row.choice)
        session.keep(text)
        while text.length < count + TOKENS:
            rest = right[text.length - count :]
            tree = random_tree(text, rest, chance)
            rows = await session.forward(tree.prefixes)
            node = chance.randrange(len(tree))
            error = rows[node].logits - alone(made, tree.prefixes[node].tokens())
            worst = max(worst, float(error.abs().max()))
            verification = await session.verify(tree, Greedy())
            accepted = len(verification.path) - 1
            seen.add("none" if not accepted else "partial" if accepted < tree.height else "full")
            text = verification.text
        return text.tokens(start=count)[:TOKENS]

    return device.play(serve()), worst, seen


@pytest.mark.parametrize("family", FAMILIES)
def test_random_trees_emit_the_targets_own_tokens(family: str) -> None:
    seen = set()
    for seed in range(2):
        tokens, worst, kinds_seen = verify_random_trees(family, seed)
        assert tokens == truth(family)
        assert worst < TOLERANCE
        seen |= kinds_seen
    assert {"none", "partial"} <= seen


@pytest.mark.parametrize("family", FAMILIES)
def test_draft_logits_in_a_tree_equal_those_of_the_branch_alone(family: str) -> None:
    """As a draft grows a tree: node after node, among the nodes that came before."""
    made, chance = decoder(family), random.Random(7)
    device = EmulatedDevice(toy())
    draft = Session(Engine("draft", device, model_cost_of(made), DecoderNetwork(made), RESIDENT))

    async def grow() -> TokenTree:
        tree = TokenTree(Prefix.of(request(family).prompt))
        await draft.forward([tree.root])
        for _ in range(9):
            node = tree.grow(chance.randrange(len(tree)), chance.randrange(VOCAB))
            await draft.forward([tree.prefixes[node]])
        return tree

    tree = device.play(grow())
    for prefix in tree.prefixes:
        expected = alone(made, prefix.tokens())
        torch.testing.assert_close(draft.logits_of(prefix).logits, expected, atol=TOLERANCE, rtol=0)


METHODS = [
    *(Standard(), FlashAutoregressive(), SpeculativeDecoding(), Corrected(), Nav(batch=2)),
    OptTree(nodes=6, depth=4),
    *(*CHAINS, *LOOK_UPS, TREES[0], TREES[7], TREES[16], TREES[22], *ABLATED, *EXPANSIONS),
]


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_no_method_emits_more_than_was_asked_for(max_tokens: int) -> None:
    for method, strength in product(METHODS, STRENGTHS):
        made = speculate(method, "qwen-3", strength, EmulatedDevice(toy()), max_tokens=max_tokens)
        assert made.tokens == truth("qwen-3")[:max_tokens], f"{method}"
        assert sum(r.emitted for r in made.rounds) == max_tokens - 1
        assert all(r.accepted <= r.emitted for r in made.rounds)


@pytest.mark.parametrize("place", range(TOKENS))
def test_every_method_ends_with_the_stop_token(place: int) -> None:
    stop = truth("qwen-3")[place]
    expected = truth("qwen-3")[: truth("qwen-3").index(stop) + 1]
    for method in METHODS:
        made = speculate(method, "qwen-3", 0.0, EmulatedDevice(toy()), stop=frozenset({stop, VOCAB}))
        assert made.tokens == expected, f"{method}"


SMALL = 3


def test_the_same_seed_draws_the_same_text() -> None:
    table = {"target": TableNetwork(SMALL, seed=1), "draft": TableNetwork(SMALL, seed=2)}
    asked = [Request("", (0, 1), 12, sampling=Sampling(1.0), seed=seed) for seed in (5, 5, 6)]
    texts = [answer(ChainSD(length=3), r, EmulatedDevice(FREE_MACHINE), table).tokens for r in asked]
    assert texts[0] == texts[1] != texts[2]
