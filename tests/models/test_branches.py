"""Branches verified as a mini-batch leave what one sequence under a tree mask leaves, in every family."""

from __future__ import annotations

import random

import pytest
import torch

from repro.device.emulated import EmulatedDevice
from repro.methods.base import Request
from repro.models.forward.chooser import Greedy
from repro.models.forward.network import DecoderNetwork, Logits, group_branches
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT, STREAMED, Placement
from repro.models.runtime.session import Session, Verification, row_count
from repro.models.runtime.verifier import WholeTree
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree
from tiny import alone, decoder, model_cost_of, plain, toy
from tiny_families import FAMILIES, VOCAB

# As in test_families: rounding moves these logits by a few 1e-5, a misplaced part by 1e-2.
TOLERANCE = 1e-4
PROMPT = tuple(random.Random("branches").randrange(VOCAB) for _ in range(9))  # longer than a window
ROUNDS = 3


def tree_after(text: Prefix, right: list[int], chance: random.Random) -> TokenTree:
    """Ten nodes at random places, after two that say what the target will say."""
    tree = TokenTree(text)
    tree.grow(tree.grow(0, right[0], -1.0), right[1], -1.0)
    while len(tree) < 11:
        tree.grow(chance.randrange(len(tree)), chance.randrange(VOCAB), -1.0)
    return tree


def verify(
    family: str, form: str, place: Placement
) -> tuple[list[Verification], list[Logits], DecoderNetwork]:
    """Rounds of verifying; for each the verdict and the row that a pass then gives for the text."""
    made = decoder(family)
    right = plain(made, Request("", PROMPT, 6 * ROUNDS))
    network, device = DecoderNetwork(made), EmulatedDevice(toy())
    session, chance = Session(Engine("target", device, model_cost_of(made), network, place)), random.Random(5)
    verdicts, rows = [], []

    async def run() -> None:
        text = Prefix.of(PROMPT)
        (row,) = await session.forward([text])
        text = text.then(row.choice)
        for _ in range(ROUNDS):
            tree = tree_after(text, right[text.length - len(PROMPT) :], chance)
            verdicts.append(await session.verify(tree, Greedy(), WholeTree(apart=form == "branches")))
            text = verdicts[-1].text
            (row,) = await session.forward([text])
            rows.append(row)
            text = text.then(row.choice)

    device.play(run())
    return verdicts, rows, network


@pytest.mark.parametrize("place", [RESIDENT, STREAMED], ids=["resident", "streamed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_next_pass_says_what_it_says_after_a_tree_mask(family: str, place: Placement) -> None:
    trees, branches = (verify(family, form, place) for form in ("tree", "branches"))
    assert [(v.path, v.text.tokens()) for v in trees[0]] == [(v.path, v.text.tokens()) for v in branches[0]]
    assert all(len(v.path) >= 3 for v in branches[0])
    assert all(many.rows > once.rows == 11 for once, many in zip(trees[0], branches[0], strict=True))
    for verification, tree_row, row in zip(branches[0], trees[1], branches[1], strict=True):
        torch.testing.assert_close(row.logits, tree_row.logits, atol=TOLERANCE, rtol=0)
        expected = alone(decoder(family), verification.text.tokens())
        torch.testing.assert_close(row.logits, expected, atol=TOLERANCE, rtol=0)
    for _, _, network in (trees, branches):
        assert network.cache.length == network.lineage.length == network.lineage.trunk.length
        assert network.cache.positions.tolist() == list(range(network.cache.length))


def rows_of(network: DecoderNetwork, wanted: list[Prefix], branches: list[Prefix]) -> list[Logits]:
    step = network.begin(wanted, branches)
    step.layers(0, network.depth)
    return step.rows()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_that_is_not_in_the_cache_is_computed_once_for_all_branches(family: str) -> None:
    """As where a memo answered all passes before."""
    made = decoder(family)
    network, root = DecoderNetwork(made), Prefix.of(PROMPT)
    tree = tree_after(root, [1, 2], random.Random(5))
    branches = [tree.prefixes[leaf] for leaf in tree.leaves()]
    before = len(PROMPT) - 1
    for prefix, row in zip(tree.prefixes, rows_of(network, tree.prefixes, branches), strict=True):
        expected = alone(made, prefix.tokens())
        torch.testing.assert_close(row.logits, expected, atol=TOLERANCE, rtol=0)
    assert network.lineage.length == before + sum(branch.length - before for branch in branches)
    text = branches[-1].then(7)
    network.keep(text)
    assert network.cache.length == text.length - 1
    (row,) = rows_of(network, [text], [])
    torch.testing.assert_close(row.logits, alone(made, text.tokens()), atol=TOLERANCE, rtol=0)


def test_what_is_billed_is_the_batch_padded_to_its_longest() -> None:
    root = Prefix.of([1, 2])
    a, b = root.extend([3, 4, 5]), root.extend([3, 6])
    new = [root, *(root.extend(rest) for rest in ([3], [3, 4], [3, 4, 5], [3, 6]))]
    assert row_count(new, []) == 5
    assert row_count(new, [a]) == 4
    assert row_count(new, [a, b]) == 2 * 4
    assert row_count(new[1:], [a, b]) == 2 * 3
    assert group_branches(new, new, [a, b]) == [[], [new[0], new[1], new[2], a], [new[0], new[1], b]]
    assert group_branches([root.parent, *new], new, [a, b])[0] == [root.parent]
    assert group_branches(new, [new[2], b], [a, b]) == [[root, new[1]], [new[2], a], [b]]
