"""Which nodes of a tree go on from a middle layer: hand-made trees exactly, random ones by invariants."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from repro.methods.lever.exit_predictor import Candidates
from repro.methods.lever.pruning import EarlyExit, PruningRule
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree

BARE = PruningRule(threshold=0.3, safeguards=False)
WHOLE = PruningRule(threshold=0.3, backbone=9, near_root=0, near_children=0, least_nodes=0, least_leaves=0)


def a_tree(*edges: tuple[int, int]) -> TokenTree:
    """A tree under the text (7,), from (parent, token) pairs."""
    tree = TokenTree(Prefix.of([7]))
    for parent, token in edges:
        tree.grow(parent, token)
    return tree


def shares(*given: float) -> list[float]:
    """Scores whose softmax is the given shares."""
    return [math.log(share) for share in given]


def forked() -> tuple[TokenTree, list[Candidates], list[list[float]]]:
    """Below the root 1 (0.6) and 2 (0.1), below 1: 3 (0.2) and 4 (0.05), below 2: 5 (0.9), below 3: 6 (0.25).

    In brackets the shares; a shadow takes the rest of each.
    """
    tree = a_tree((0, 1), (0, 2), (1, 1), (1, 3), (2, 1), (3, 9))
    candidates: list[Candidates] = [(1, 2, 8), (1, 3, 8), (1, 8), (9, 8), (), (), ()]
    scores = [shares(0.6, 0.1, 0.3), shares(0.2, 0.05, 0.75), shares(0.9, 0.1), shares(0.25, 0.75)]
    return tree, candidates, [*scores, [], [], []]


def test_shares_are_of_all_candidates_and_shadows_lower_them() -> None:
    tree, candidates, scores = forked()
    with_shadows = BARE.values(tree, candidates, scores)
    assert with_shadows == pytest.approx([1, 0.6, 0.1, 0.2, 0.05, 0.9, 0.25])
    alone = replace(BARE, shadow=False).values(tree, candidates, scores)
    assert alone == pytest.approx([1, 6 / 7, 1 / 7, 0.8, 0.2, 1, 1])


def test_a_removed_child_takes_its_branch_along() -> None:
    assert BARE.keep(*forked()) == [0, 1]  # node 5's own share is high, but node 2 is gone
    assert replace(BARE, threshold=0.08).keep(*forked()) == [0, 1, 2, 3, 5, 6]
    assert replace(BARE, threshold=0.0).keep(*forked()) == list(range(7))


def test_the_backbone_follows_the_best_child_to_a_leaf_or_its_depth() -> None:
    assert WHOLE.keep(*forked()) == [0, 1, 3, 6]
    assert replace(WHOLE, backbone=2).keep(*forked()) == [0, 1, 3]
    assert replace(WHOLE, backbone=0).keep(*forked()) == [0, 1]


def test_near_the_root_the_best_children_stay() -> None:
    rule = replace(WHOLE, backbone=0, near_root=1, near_children=2)
    assert rule.keep(*forked()) == [0, 1, 2]
    assert replace(rule, near_root=2).keep(*forked()) == [0, 1, 2, 3, 4, 5]
    assert replace(rule, near_root=2, near_children=1).keep(*forked()) == [0, 1, 3]


def test_a_pruning_that_leaves_too_little_is_rejected() -> None:
    assert replace(WHOLE, least_nodes=4).keep(*forked()) == [0, 1, 3, 6]
    assert replace(WHOLE, least_nodes=5).keep(*forked()) == list(range(7))
    assert replace(WHOLE, least_leaves=2).keep(*forked()) == list(range(7))
    assert replace(WHOLE, least_nodes=5, safeguards=False).keep(*forked()) == [0, 1]


def random_case(seed: int) -> tuple[TokenTree, list[Candidates], list[list[float]]]:
    chance = random.Random(seed)
    tree = TokenTree(Prefix.of([7]))
    for _ in range(chance.randrange(30)):
        tree.grow(chance.randrange(len(tree)), chance.randrange(6))
    generator = torch.Generator().manual_seed(seed)
    candidates: list[Candidates] = []
    for node in range(len(tree)):
        own = [tree.token(child) for child in tree.children(node)]
        shadows = chance.sample(range(6, 12), 3)
        candidates.append(tuple(own + shadows) if own else ())
    return (
        tree,
        candidates,
        [(3 * torch.randn(len(tokens), generator=generator)).tolist() for tokens in candidates],
    )


@pytest.mark.parametrize("seed", range(40))
def test_what_is_kept_is_a_tree_with_its_backbone(seed: int) -> None:
    tree, candidates, scores = random_case(seed)
    rule = PruningRule(threshold=0.2, least_nodes=5, least_leaves=2)
    values = rule.values(tree, candidates, scores)
    kept = rule.keep(tree, candidates, scores)
    assert kept[0] == 0
    assert kept == sorted(set(kept))
    assert set(kept) <= set(range(len(tree)))
    assert all(tree.parents[node] in kept for node in kept[1:])
    node = 0
    while tree.children(node):
        node = max(tree.children(node), key=values.__getitem__)
        assert node in kept
    assert set(sorted(tree.children(0), key=lambda child: -values[child])[:2]) <= set(kept)
    leaves = [n for n in kept if not set(tree.children(n)) & set(kept)]
    assert len(kept) == len(tree) or (len(kept) >= 5 and len(leaves) >= 2)
    bare = replace(rule, safeguards=False).keep(tree, candidates, scores)
    assert set(bare) <= set(kept)
    assert set(bare) == {n for n in range(len(tree)) if all(values[up] >= 0.2 for up in tree.path(n))}
    alone = replace(rule, shadow=False).values(tree, candidates, scores)
    assert all(one <= other + 1e-12 for one, other in zip(values, alone, strict=True))
    higher = replace(rule, safeguards=False, threshold=0.4).keep(tree, candidates, scores)
    assert set(higher) <= set(bare)


def test_the_drafts_candidates_are_scored_beside_all_children() -> None:
    predictor: Any = SimpleNamespace(layer=3)
    pruner = EarlyExit(predictor, BARE, lambda prefix: (1, 4) if prefix.length == 1 else ())
    assert pruner.candidates(a_tree((0, 1), (0, 2), (1, 3))) == [(1, 4, 2), (3,), (), ()]
