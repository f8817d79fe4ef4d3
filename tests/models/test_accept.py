"""Greedy acceptance against a naive walk; sampled acceptance against the target's distribution; sampling."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from repro.core.errors import InputError
from repro.methods.speculative.specinfer import merge
from repro.models.tokens import acceptance
from repro.models.tokens.acceptance import drive, greedy, sample
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import Sampling, draw
from repro.models.tokens.tree import TokenTree
from tiny import chance_of

VOCAB = 6
DRAWS = 5_000
P = torch.tensor([0.30, 0.05, 0.25, 0.05, 0.35, 0.00])
Q = torch.tensor([0.05, 0.40, 0.15, 0.20, 0.10, 0.10])
AFTER = {token: torch.roll(P, token + 1) for token in range(VOCAB)}
"""The target after each first token."""

Drafter = Callable[[torch.Generator], TokenTree]


@pytest.mark.parametrize("seed", range(100))
def test_greedy_follows_the_target_as_far_as_the_tree_goes(seed: int) -> None:
    chance = random.Random(seed)
    tree = TokenTree(Prefix.of([0]))
    for _ in range(chance.randint(0, 12)):
        tree.grow(chance.randrange(len(tree)), chance.randrange(3))
    choices = [chance.randrange(3) for _ in range(len(tree))]
    accepted = drive(greedy(tree), choices.__getitem__)

    paths = {tuple(tree.prefixes[n].tokens(after=1)): n for n in range(len(tree))}
    text: tuple[int, ...] = ()
    while text in paths:
        text = (*text, choices[paths[text]])
    emitted = [tree.token(n) for n in accepted.path[1:]] + [accepted.bonus]
    assert tuple(emitted) == text
    assert accepted.path == [paths[text[:i]] for i in range(len(text))]


def test_a_token_is_its_whole_number() -> None:
    """Of a large vocabulary no other token than the target's is accepted, however alike the numbers are."""
    chance = random.Random(0)
    numbers = [chance.randrange(150_000) for _ in range(300)]
    for choice in numbers:
        tree = TokenTree(Prefix.of([0]))
        for other in {choice + d for d in (1, 10, 64, 97, 100, 128, 256, 1000, 1024, 32_768, 65_536)}:
            tree.grow(0, other)
        assert drive(greedy(tree), lambda node, choice=choice: choice) == ([0], choice)
        right = tree.grow(0, choice)
        assert drive(greedy(tree), lambda node, choice=choice: choice).path == [0, right]


def chain(chance: torch.Generator) -> TokenTree:
    """Two drawn tokens, one after the other."""
    tree = TokenTree(Prefix.empty())
    first = tree.grow(0, draw(Q, chance), distribution=Q)
    tree.grow(first, draw(Q.flip(0), chance), distribution=Q.flip(0))
    return tree


def with_replacement(chance: torch.Generator) -> TokenTree:
    """Three children drawn from one distribution; the same token may come twice."""
    tree = TokenTree(Prefix.empty())
    for _ in range(3):
        tree.grow(0, draw(Q, chance), distribution=Q)
    return tree


def without_replacement(chance: torch.Generator) -> TokenTree:
    """Three children, each drawn from what the earlier ones leave."""
    tree, left = TokenTree(Prefix.empty()), Q.clone()
    for _ in range(3):
        token = draw(left, chance)
        tree.grow(0, token, distribution=left.clone())
        left[token] = 0.0
        left = left / left.sum()
    return tree


def chosen(chance: torch.Generator) -> TokenTree:
    """Tokens that no chance chose, two levels of them."""
    tree = TokenTree(Prefix.empty())
    for token in (2, 1, 5):
        tree.grow(tree.grow(0, token), 4)
    return tree


def mixed(chance: torch.Generator) -> TokenTree:
    """A chosen child before a drawn one, whose child is drawn too."""
    tree = TokenTree(Prefix.empty())
    tree.grow(0, 4)
    tree.grow(tree.grow(0, draw(Q, chance), distribution=Q), draw(Q, chance), distribution=Q)
    return tree


def merged(chance: torch.Generator) -> TokenTree:
    """What two drafts drew from distributions of their own, with what they drew after it."""
    drafts = []
    for q, times in ((Q, 2), (Q.roll(2), 1)):
        tree = TokenTree(Prefix.empty() if not drafts else drafts[0].root)
        level = [tree.grow(0, draw(q, chance), distribution=q) for _ in range(times)]
        for node in level:
            if tree.find(tree.prefixes[node]) == node:
                tree.grow(node, draw(q.flip(0), chance), distribution=q.flip(0))
        drafts.append(tree)
    return merge(drafts)


def bare(chance: torch.Generator) -> TokenTree:
    """Nothing drafted."""
    return TokenTree(Prefix.empty())


DRAFTERS = [chain, with_replacement, without_replacement, chosen, mixed, merged, bare]


def emitted(drafter: Drafter, draws: int = DRAWS) -> tuple[Tensor, Tensor]:
    """How often each first token came, and each pair of a first and an accepted second emitted token."""
    chance = torch.Generator().manual_seed(0)
    first, pairs = torch.zeros(VOCAB), torch.zeros(VOCAB, VOCAB)
    for _ in range(draws):
        tree = drafter(chance)

        def target(node: int, tree: TokenTree = tree) -> Tensor:
            return P if node == 0 else AFTER[tree.token(tree.path(node)[1])]

        path, bonus = drive(sample(tree, chance), target)
        tokens = [tree.token(node) for node in path[1:]] + [bonus]
        first[tokens[0]] += 1
        if len(tokens) > 1:
            pairs[tokens[0], tokens[1]] += 1
    return first, pairs


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_acceptance_leaves_the_targets_distribution(drafter: Drafter) -> None:
    first, pairs = emitted(drafter)
    assert chance_of(first, P) > 1e-3
    second = [chance_of(pairs[token], AFTER[token]) for token in range(VOCAB) if pairs[token].sum() > 250]
    assert all(chance > 1e-3 for chance in second)
    assert bool(second) == (drafter is not bare)


def accept_always(tree, node, left, chance):
    return next(iter(tree.children(node)), None), left


def keep_the_rest(tree, node, left, chance):
    """Right but for the residue: a rejected child leaves the target as it was."""
    for child in tree.children(node):
        drawn = tree.distributions[child]
        proposed = 1.0 if drawn is None else drawn[tree.token(child)]
        if torch.rand((), generator=chance) * proposed < left[tree.token(child)]:
            return child, left
    return None, left


@pytest.mark.parametrize("fault", [accept_always, keep_the_rest])
@pytest.mark.parametrize("drafter", [chain, with_replacement, without_replacement, chosen])
def test_a_faulty_acceptance_is_noticed(drafter: Drafter, fault, monkeypatch) -> None:
    monkeypatch.setattr(acceptance, "_try_children", fault)
    assert chance_of(emitted(drafter, 5000)[0], P) < 1e-6


def test_the_chance_to_accept_is_the_overlap() -> None:
    """Leviathan et al.: one drawn token is accepted with probability sum(min(p, q))."""
    chance, taken = torch.Generator().manual_seed(1), 0
    for _ in range(5000):
        tree = TokenTree(Prefix.empty())
        tree.grow(0, draw(Q, chance), distribution=Q)
        taken += len(drive(sample(tree, chance), lambda node: P).path) - 1
    overlap = float(torch.minimum(P, Q).sum())
    assert taken / 5000 == pytest.approx(overlap, abs=0.03)


def test_a_draft_that_equals_the_target_is_always_accepted() -> None:
    chance = torch.Generator().manual_seed(2)
    for _ in range(500):
        tree = TokenTree(Prefix.empty())
        tree.grow(0, draw(P, chance), distribution=P)
        assert len(drive(sample(tree, chance), lambda node: P).path) == 2


def test_a_rejection_by_rounding_alone_still_emits_a_token(monkeypatch) -> None:
    """Where draft and target differ by a rounding error, nothing may be left to draw from."""
    monkeypatch.setattr(torch, "rand", lambda *size, generator: torch.tensor(1 - 2**-24))
    p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.5 + 2**-20, 0.5])
    tree = TokenTree(Prefix.empty())
    tree.grow(0, 0, distribution=q)
    path, bonus = drive(sample(tree, torch.Generator().manual_seed(0)), lambda node: p)
    assert path == [0, 1]
    assert bonus in (0, 1)


LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0])


def test_temperature() -> None:
    assert torch.equal(Sampling(1.0).probabilities(LOGITS), LOGITS.softmax(-1))
    assert torch.equal(Sampling(0.5).probabilities(LOGITS), (2 * LOGITS).softmax(-1))
    hot = Sampling(1e6).probabilities(LOGITS)
    torch.testing.assert_close(hot, torch.full((4,), 0.25), atol=1e-5, rtol=0)
    assert Sampling().greedy
    assert not Sampling(0.1).greedy


def test_top_p_keeps_the_fewest_tokens_that_hold_the_mass() -> None:
    known = torch.tensor([0.1, 0.5, 0.15, 0.25])
    for mass, kept in [(0.5, [1]), (0.51, [1, 3]), (0.75, [1, 3]), (0.8, [1, 2, 3]), (0.95, [0, 1, 2, 3])]:
        found = Sampling(1.0, mass).probabilities(known.log())
        expected = torch.zeros(4)
        expected[kept] = known[kept] / known[kept].sum()
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_rows_are_treated_apart() -> None:
    rows = torch.stack([LOGITS, LOGITS.flip(0)])
    found = Sampling(0.7, 0.9).probabilities(rows)
    assert torch.equal(found[0], Sampling(0.7, 0.9).probabilities(LOGITS))
    assert torch.equal(found[1], found[0].flip(0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"temperature": -1.0},
            r"sampling.temperature is -1.0; it must be 0 \(greedy\), or a number of at least 1e-06",
        ),
        ({"top_p": 0.0}, "sampling.top_p is 0.0"),
        ({"top_p": 1.5}, "sampling.top_p is 1.5; it must be above 0 and at most 1"),
    ],
)
def test_impossible_sampling_is_refused(given: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sampling(**given)


def test_draws_follow_the_distribution() -> None:
    chance = torch.Generator().manual_seed(3)
    counts = torch.zeros(VOCAB)
    for _ in range(5000):
        counts[draw(P, chance)] += 1
    assert chance_of(counts, P) > 1e-3
    assert chance_of(counts, Q) < 1e-9
