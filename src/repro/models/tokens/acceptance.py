"""Acceptance of draft tokens, as generators that walk a token tree from its root, one node at a time.

Greedy acceptance emits exactly the target's greedy tokens. Sampled acceptance preserves the target's
distribution, for greedy and for sampled drafts. The caller of a walk decides when logits are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

from repro.libraries import Tensor, torch
from repro.models.tokens.sampling import draw
from repro.models.tokens.tree import TokenTree

Output = TypeVar("Output")


class Accepted(NamedTuple):
    """The accepted nodes, root first, and the target's own token after the last one (bonus token)."""

    path: list[int]
    bonus: int


AcceptanceWalk = Generator[int, Output, Accepted]
"""Generator: yields a node, receives the target's output there, returns the accepted path."""


def drive(walk: AcceptanceWalk[Output], output_at: Callable[[int], Output]) -> Accepted:
    """Run a walk to its end; `output_at` gives the target's output at a node."""
    node = next(walk)
    while True:
        try:
            node = walk.send(output_at(node))
        except StopIteration as end:
            accepted: Accepted = end.value
            return accepted


def greedy(tree: TokenTree) -> AcceptanceWalk[int]:
    """Follow the target's choices from node to node while the tree contains them.

    Receives the target's most likely next token after each yielded node.
    """
    path = [0]
    while True:
        choice = yield path[-1]
        child = next((c for c in tree.children(path[-1]) if tree.token(c) == choice), None)
        if child is None:
            return Accepted(path, choice)
        path.append(child)


def sample(tree: TokenTree, generator: torch.Generator) -> AcceptanceWalk[Tensor]:
    """Multi-step speculative sampling (SpecInfer Alg. 2; Leviathan et al. for a chain).

    Children of a node are tried in order. A child sampled from `q` is accepted with probability
    `min(1, p/q)`; a rejection replaces p by `norm(max(0, p - q))`. A greedily chosen child has a one-hot `q`.
    Receives the target's distribution `[vocab]` after each yielded node.

    Deviation: SpecInfer tries a node's children in random order. Any order independent of the sampled tokens
    preserves the distribution. Samples from the same `q` are exchangeable, so the order matters only with
    several drafts, and only for the number of accepted tokens.

    Args:
        tree: the draft tree; `tree.distributions` holds each node's `q`, `[vocab]`.
        generator: random generator on the CPU.
    """
    path = [0]
    while True:
        target = yield path[-1]
        child, target = _try_children(tree, path[-1], target, generator)
        if child is None:
            return Accepted(path, draw(target, generator))
        path.append(child)


def _try_children(
    tree: TokenTree, node: int, target: Tensor, generator: torch.Generator
) -> tuple[int | None, Tensor]:
    for child in tree.children(node):
        token, distribution = tree.token(child), tree.distributions[child]
        proposed = distribution if distribution is not None else _one_hot(token, target)
        if torch.rand((), generator=generator) * proposed[token] < target[token]:
            return child, target
        excess = (target - proposed).clamp(min=0)
        if not excess.any():  # p and q differ only by rounding, so acceptance was certain
            return child, target
        target = excess / excess.sum()
    return None, target


def _one_hot(token: int, like: Tensor) -> Tensor:
    distribution = torch.zeros_like(like)
    distribution[token] = 1.0
    return distribution
