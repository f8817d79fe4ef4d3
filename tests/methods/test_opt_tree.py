"""OPT-Tree's trees, its end of drafting, its passes, and that its answers are the target's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod

import pytest
import torch

from repro.device.emulated import EmulatedDevice
from repro.methods.base import Decoding, Request
from repro.methods.speculative.opt_tree import OptTree
from repro.models.forward.network import DecoderNetwork, Network
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.sampling import Sampling
from repro.models.tokens.tree import TokenTree
from tiny import NoisedNetwork, TableNetwork, alone, answer, chance_of, decoder, opened, plain, toy

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
    return {tuple(prefix.tokens(after=tree.root.length)) for prefix in tree.prefixes[1:]}


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
        path = tuple(tree.prefixes[node].tokens(after=2))
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


def test_a_pass_has_all_nodes_of_a_layer() -> None:
    """The first reads the prompt of 2; then as many rows as there are nodes, however few will be verified."""
    _, reason, passes = grown(OptTree(nodes=9, threshold=0.0, depth=4), TableNetwork(VOCAB, 0, 2.0))
    assert (passes, reason) == ([2, 9, 9, 9], "depth")
    _, _, few = grown(OptTree(nodes=25, threshold=0.0, depth=3), TableNetwork(VOCAB, 0, 2.0))
    assert few == [2, VOCAB, 25], "the root has no more children than that"


def test_a_node_comes_before_its_equally_likely_child() -> None:
    certain = TableNetwork(VOCAB, 0, sharpness=1e5)
    tree, reason, _ = grown(OptTree(nodes=3, threshold=0.5, depth=10), certain)
    assert tree.parents == [-1, 0, 1, 2]
    assert [tree.confidence(node) for node in range(4)] == [1.0] * 4
    assert reason == "threshold", "the fourth layer adds nothing to 3 nodes"


@pytest.mark.parametrize("family", ["llama-2", "qwen-3"])
@pytest.mark.parametrize("strength", [0.0, 0.2, 20.0])
def test_answers_are_the_targets_own(family: str, strength: float) -> None:
    made = decoder(family)
    asked = Request("", (3, 1, 2, 5), 20)
    networks = {"target": DecoderNetwork(made), "draft": NoisedNetwork(DecoderNetwork(made), strength)}
    generation = answer(OptTree(nodes=6, threshold=0.2, depth=4), asked, EmulatedDevice(toy()), networks)
    assert generation.tokens == plain(made, asked)
    assert all(0 < r.drafted <= 6 for r in generation.rounds)
    if not strength:
        assert max(r.accepted for r in generation.rounds) > 1


def test_the_second_step_sees_no_more_than_its_own_ancestors() -> None:
    """Masks are made for each pass: rows of each layer, also in a second round, are as from a fresh cache."""
    made, device, method = decoder("llama-2"), EmulatedDevice(toy()), OptTree(nodes=4, threshold=0.0, depth=3)
    networks: dict[str, Network] = {"target": DecoderNetwork(made), "draft": DecoderNetwork(made)}
    draft = opened(method, device, networks)["draft"]
    decoding = Decoding(Request("", (3, 1, 2, 5), 20), device)
    for _ in range(2):
        tree, _ = device.play(method.grow(decoding, draft))
        asked = [prefix for prefix in tree.prefixes if tree.depth(tree.find(prefix)) < 2]
        assert len(asked) > 2
        for prefix in asked:
            assert torch.allclose(draft.logits_of(prefix).logits, alone(made, prefix.tokens()), atol=1e-4)
        decoding.text = tree.prefixes[max(tree.leaves(), key=tree.depth)].then(7)
        draft.keep(decoding.text)


def test_sampled_answers_have_the_targets_distribution() -> None:
    """Children are chosen and not drawn; verification makes up for it."""
    target, draft, sampling = TableNetwork(5, 0), TableNetwork(5, 1), Sampling(1.0)
    counts, runs = torch.zeros(5, 5), 600
    for seed in range(runs):
        asked = Request("", (0, 1), 3, sampling=sampling, seed=seed)
        method = OptTree(nodes=4, threshold=0.1, depth=2)
        tokens = answer(method, asked, EmulatedDevice(toy()), {"target": target, "draft": draft}).tokens
        counts[tokens[1], tokens[2]] += 1
    first = sampling.probabilities(target.logits(Prefix.of(ASKED.prompt)))
    expected = torch.zeros(5, 5)
    for one in range(5):
        second = sampling.probabilities(target.logits(Prefix.of((*ASKED.prompt, one))))
        for two in range(5):
            third = sampling.probabilities(target.logits(Prefix.of((*ASKED.prompt, one, two))))
            expected[two] += first[one] * second[two] * third
    assert chance_of(counts, expected) > 1e-3
