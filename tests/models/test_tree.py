"""Token trees against lists of tokens, over random growth."""

from __future__ import annotations

import math
import random

import pytest
import torch

from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree


class Naive:
    """The same tree as a list of token lists, one a node."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.tree = TokenTree(Prefix.of([9, 9]))
        self.paths: list[tuple[int, ...]] = [()]
        self.logps = [0.0]
        for _ in range(chance.randint(0, 25)):
            parent, token, logp = chance.randrange(len(self.tree)), chance.randrange(4), -chance.random()
            path = (*self.paths[parent], token)
            node = self.tree.grow(parent, token, logp)
            if path in self.paths:
                assert node == self.paths.index(path)
                continue
            assert node == len(self.paths)
            self.paths.append(path)
            self.logps.append(logp)


@pytest.fixture(params=range(60))
def naive(request) -> Naive:
    return Naive(request.param)


def test_every_node_is_its_path(naive: Naive) -> None:
    tree = naive.tree
    assert len(tree) == len(naive.paths)
    for node, path in enumerate(naive.paths):
        above = tree.path(node)
        assert [naive.paths[n] for n in above] == [path[:i] for i in range(len(path) + 1)]
        assert tuple(tree.prefixes[node].tokens(after=2)) == path
        assert tree.prefixes[node] is tree.root.extend(path)
        assert tree.depth(node) == len(path)
        assert tree.confidence(node) == pytest.approx(math.exp(sum(naive.logps[n] for n in above)))
        children = [n for n, p in enumerate(naive.paths) if p and p[:-1] == path]
        assert list(tree.children(node)) == children
        assert all(tree.parents[child] == node for child in children)
        assert tree.find(tree.prefixes[node]) == node
        assert node == 0 or tree.token(node) == path[-1]
    assert tree.parents[0] == -1
    assert tree.height == max(map(len, naive.paths))
    inner = {p[:-1] for p in naive.paths if p}
    assert [naive.paths[n] for n in tree.leaves()] == [p for p in naive.paths if p not in inner]


def test_what_lies_below_a_node_is_a_tree_of_its_own(naive: Naive) -> None:
    tree = naive.tree
    for node, path in enumerate(naive.paths):
        part = tree.below(tree.prefixes[node])
        expected = [p[len(path) :] for p in naive.paths if p[: len(path)] == path]
        assert [tuple(p.tokens(after=2 + len(path))) for p in part.prefixes] == expected
        assert part.root is tree.prefixes[node]
        assert part.logps[0] == 0.0
        assert part.logps[1:] == [naive.logps[naive.paths.index(path + p)] for p in expected[1:]]


def test_below_a_sequence_that_no_node_ends_in_there_is_only_the_root() -> None:
    tree = TokenTree(Prefix.of([1]))
    tree.grow(0, 2)
    part = tree.below(tree.root.extend([3, 4]))
    assert len(part) == 1
    assert part.root is tree.root.extend([3, 4])
    assert tree.find(part.root) is None


def test_a_copy_grows_apart() -> None:
    tree = TokenTree(Prefix.of([1]))
    tree.grow(0, 2)
    copy = tree.below(tree.root)
    copy.grow(1, 3)
    assert (len(tree), len(copy)) == (2, 3)


def test_a_drawn_token_is_a_node_of_its_own_each_time() -> None:
    tree, drawn = TokenTree(Prefix.of([1])), torch.tensor([0.25, 0.75])
    first = tree.grow(0, 1, distribution=drawn)
    second = tree.grow(0, 1, distribution=drawn)
    assert first != second
    assert tree.prefixes[first] is tree.prefixes[second]
    part = tree.below(tree.root)
    assert [d is drawn for d in part.distributions[1:]] == [True, True]
