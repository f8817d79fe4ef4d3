"""OPT-Tree's trees are the most likely, and drafting ends where a layer adds too little."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod

import pytest

from repro.device.emulated import EmulatedDevice
from repro.methods.base import Decoding, Request
from repro.methods.speculative.opt_tree import OptTree
from repro.models.forward.network import Network
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree
from tiny import TableNetwork, opened, toy

VOCAB = 10
ASKED = Request("", (0, 1), 12)
Path_ = tuple[int, ...]


def grown(method: OptTree, draft: Network, asked: Request = ASKED) -> tuple[TokenTree, str, list[int]]:
    """A tree after the prompt, why it ended, and the rows of the draft's passes."""
    device = EmulatedDevice(toy())
    sessions = opened(method, device, {"target": TableNetwork(VOCAB), "draft": draft})
    tree, reason = device.play(method.grow(Decoding(asked, device), sessions["draft"]))
    return tree, reason, [p.rows for p in sessions["draft"].passes]


def paths(model: TableNetwork, depth: int) -> dict[Path_, float]:
    """Every sequence down to a depth with its probability."""

    @cache
    def after(path: Path_) -> list[float]:
        logits = model.logits(Prefix.of((*ASKED.prompt, *path)))
        return logits.double().softmax(-1).tolist()

    def all_paths(path: Path_) -> Iterator[Path_]:
        for token in range(VOCAB) if len(path) < depth else ():
            yield (*path, token)
            yield from all_paths((*path, token))

    return {p: prod(after(p[:i])[p[i]] for i in range(len(p))) for p in all_paths(())}


def sequences(tree: TokenTree) -> set[Path_]:
    return {tuple(prefix.tokens(start=tree.root.length)) for prefix in tree.prefixes[1:]}


@pytest.mark.parametrize("sharpness", [1.0, 3.0])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("nodes", [1, 7, 25])
def test_the_tree_is_the_most_likely_of_its_size(nodes: int, seed: int, sharpness: float) -> None:
    model = TableNetwork(VOCAB, seed, sharpness)
    tree, reason, _ = grown(OptTree(nodes=nodes, threshold=0.0, depth=4), model)
    every = paths(model, tree.height if reason == "threshold" else 4)
    best = sorted(every, key=every.__getitem__, reverse=True)[: min(nodes, len(every))]
    assert sequences(tree) == set(best)
    for node in range(1, len(tree)):
        path = tuple(tree.prefixes[node].tokens(start=2))
        assert tree.confidence(node) == pytest.approx(every[path], abs=1e-6)


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("seed", range(6))
def test_drafting_ends_with_the_layer_that_adds_too_little(seed: int, threshold: float) -> None:
    model, nodes, depth = TableNetwork(VOCAB, seed, 3.0), 8, 4
    expected = [0.0]
    for layers in range(1, depth + 1):
        every = paths(model, layers)
        expected.append(sum(sorted(every.values())[-nodes:]))
    layers = next((n for n in range(1, depth + 1) if expected[n] - expected[n - 1] <= threshold), depth)
    tree, reason, passes = grown(OptTree(nodes=nodes, threshold=threshold, depth=depth), model)
    assert len(passes) == layers, "one pass a layer"
    ended = expected[layers] - expected[layers - 1] <= threshold
    assert reason == ("threshold" if ended else "depth")
    assert sum(tree.confidence(node) for node in range(1, len(tree))) == pytest.approx(expected[layers])


def test_a_node_comes_before_its_equally_likely_child() -> None:
    certain = TableNetwork(VOCAB, 0, sharpness=1e5)
    tree, reason, _ = grown(OptTree(nodes=3, threshold=0.5, depth=10), certain)
    assert tree.parents == [-1, 0, 1, 2]
    assert [tree.confidence(node) for node in range(4)] == [1.0] * 4
    assert reason == "threshold", "the fourth layer adds nothing to 3 nodes"
