"""Every lossless method's tokens are the target's own greedy ones, for every family, however wrong the draft.

Drafts are noised targets, so that no, partial and full acceptance all occur. Everything computes in fp32.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch

from repro.device.cost import FREE_MACHINE
from repro.device.emulated import Device, EmulatedDevice
from repro.methods.base import Generation, Method, Request
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.methods.plain.autoregressive import DraftAlone, FlashAutoregressive, Standard
from repro.methods.speculative.chain_sd import ChainSD, SpeculativeDecoding
from repro.methods.speculative.prompt_lookup import PromptLookup
from repro.methods.speculative.specinfer import SpecInfer
from repro.models.costs.model_cost import ModelCost, precision
from repro.models.forward.chooser import Greedy, chooser
from repro.models.forward.network import DecoderNetwork, Network
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Session
from repro.models.tokens.kv_slots import Lineage
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import GREEDY, Sampling
from repro.models.tokens.tree import TokenTree
from tiny import (
    DEVICES,
    SHAPE,
    NoisedNetwork,
    TableNetwork,
    alone,
    answer,
    chance_of,
    decoder,
    here,
    model_cost_of,
    plain,
    toy,
)
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


def test_every_family_is_here() -> None:
    assert len(FAMILIES) >= 16
    assert (len(CHAINS), len(TREES), len(EXPANSIONS), len(STRENGTHS)) == (3, 24, 3, 3)
    assert len(ABLATED) == 3


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


@pytest.mark.parametrize("family", FAMILIES)
def test_also_on_this_machines_own_clock(family: str) -> None:
    device = here()
    for method, strength in [
        (ChainSD(resident=1.0, length=4), 0.2),
        (EdgeLLM(resident=1.0, choices=3, limit=4, ahead=3), 0.2),
        (EdgeLLM(resident=1.0, choices=2, limit=4, ahead=3), 0.0),
        (SpecInfer(resident=1.0, expansion=(1, 2, 1), drafts=2), 0.2),
        (PromptLookup(resident=1.0), 0.0),
    ]:
        assert speculate(method, family, strength, device).tokens == truth(family), f"{method}"
    device.close()


FORMS = [
    EdgeLLM(provisional=provisional, verification=form, resident=1.0, choices=3, limit=4, ahead=3)
    for provisional, form in product(("gaps", "naive", "never"), ("tree", "branches"))
]


@pytest.mark.parametrize("family", FAMILIES)
def test_however_edgellm_drafts_and_verifies_on_this_machines_own_clock(family: str) -> None:
    device = here()
    turn = list(FAMILIES).index(family)
    for i, method in enumerate(FORMS):
        strength = STRENGTHS[(i + i // 3 + turn) % 3]  # every form meets every strength over the families
        assert speculate(method, family, strength, device).tokens == truth(family), f"{method}"
    device.close()


def test_provisional_tokens_are_used() -> None:
    """Else the cases above would not test what becomes of them: the answer must be there sooner."""
    ended = {
        provisional: speculate(
            EdgeLLM(limit=4, ahead=3, provisional=provisional), "llama-2", 0.0, EmulatedDevice(toy())
        ).ended
        for provisional in ("gaps", "never")
    }
    assert ended["gaps"] < ended["never"]


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


def see_a_sibling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that costs acceptance in silence: each row with a sibling sees one."""
    right = Lineage.mask

    def wrong(self: Lineage, rows: list[Prefix]) -> torch.Tensor | None:
        mask = right(self, rows)
        if mask is not None:
            for i, row in enumerate(rows):
                siblings = [j for j, other in enumerate(rows) if other.parent is row.parent and j != i]
                mask[i, [self.length + j for j in siblings[:1]]] = True
        return mask

    monkeypatch.setattr(Lineage, "mask", wrong)


def test_a_mask_that_shows_a_sibling_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, family = range(6), "llama-2"
    right = [truth(family, seed) for seed in seeds]
    method = EdgeLLM(choices=3, alpha=1e-6, limit=8, provisional="never")

    def wrong_answers() -> list[int]:
        made = [speculate(method, family, 0.2, EmulatedDevice(toy()), seed).tokens for seed in seeds]
        return [seed for seed in seeds if made[seed] != right[seed]]

    assert wrong_answers() == []
    see_a_sibling(monkeypatch)
    assert len(wrong_answers()) >= 2
    broken = [verify_random_trees(family, seed) for seed in range(3)]
    assert all(worst > 100 * TOLERANCE for _, worst, _ in broken)
    assert any(tokens != right[0] for tokens, *_ in broken)


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
    *(Standard(), FlashAutoregressive(), SpeculativeDecoding()),
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


@pytest.mark.parametrize("device", DEVICES)
def test_the_draft_alone_writes_its_own_text(device: str) -> None:
    opened = DEVICES[device]()
    assert speculate(DraftAlone(), "llama-2", 0.0, opened).tokens == truth("llama-2")
    noised = speculate(DraftAlone(), "llama-2", 100.0, opened).tokens
    opened.close()
    assert noised != truth("llama-2")
    assert len(noised) == TOKENS
    assert not DraftAlone.lossless


SMALL = 3
DRAWS = 750
ONE_LAYER = ModelCost(replace(SHAPE, layers=1), precision("fp32"))
HOT = Sampling(temperature=1.0)


def sampled(method: Method, sampling: Sampling = HOT) -> torch.Tensor:
    """How often each triple of first tokens came, `[3, 3, 3]`."""
    tables = {role: TableNetwork(SMALL, seed=i + 1) for i, role in enumerate(("target", "draft", "draft_2"))}
    model_costs, counts = dict.fromkeys(tables, ONE_LAYER), torch.zeros(SMALL, SMALL, SMALL)
    for seed in range(DRAWS):
        asked = Request("", (0, 1), 3, sampling=sampling, seed=seed)
        made = answer(method, asked, EmulatedDevice(FREE_MACHINE), tables, model_costs)
        counts[tuple(made.tokens)] += 1
    return counts


def joint(sampling: Sampling = HOT) -> torch.Tensor:
    """The probability of each triple, from the target's logits alone."""
    target, out = TableNetwork(SMALL, seed=1), torch.zeros(SMALL, SMALL, SMALL)
    for triple in product(range(SMALL), repeat=3):
        text, chance = Prefix.of((0, 1)), 1.0
        for token in triple:
            chance *= float(sampling.probabilities(target.logits(text))[token])
            text = text.then(token)
        out[triple] = chance
    return out


@pytest.mark.parametrize(
    ("method", "sampling"),
    [
        (Standard(), HOT),
        (ChainSD(length=2), HOT),
        (ChainSD(length=2), Sampling(0.7, 0.8)),
        (EdgeLLM(limit=3, choices=2, ahead=2), HOT),
        (SpecInfer(expansion=(2, 2)), HOT),
        (PromptLookup(length=2), HOT),
        (SpecInfer(expansion=(2, 1), drafts=2), HOT),
        (SpecInfer(expansion=(1, 2), drafts=2), Sampling(0.7, 0.8)),
    ],
)
def test_sampled_text_has_the_targets_distribution(method: Method, sampling: Sampling) -> None:
    assert chance_of(sampled(method, sampling), joint(sampling)) > 1e-3


def test_text_sampled_from_the_draft_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same test, with a target that takes whatever it is offered."""
    from repro.models.tokens import acceptance

    taken = lambda tree, node, left, chance: (next(iter(tree.children(node)), None), left)  # noqa: E731
    monkeypatch.setattr(acceptance, "_try_children", taken)
    assert chance_of(sampled(ChainSD(length=2)), joint()) < 1e-9


def test_the_same_seed_draws_the_same_text() -> None:
    table = {"target": TableNetwork(SMALL, seed=1), "draft": TableNetwork(SMALL, seed=2)}
    asked = [Request("", (0, 1), 12, sampling=HOT, seed=seed) for seed in (5, 5, 6)]
    texts = [answer(ChainSD(length=3), r, EmulatedDevice(FREE_MACHINE), table).tokens for r in asked]
    assert texts[0] == texts[1] != texts[2]
    assert chooser(GREEDY, 0).greedy
    assert not chooser(HOT, 0).greedy
