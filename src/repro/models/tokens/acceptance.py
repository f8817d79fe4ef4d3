"""Which drafted tokens a target keeps, as walks from a tree's root that ask for one node's row at a time.

Greedy acceptance emits exactly the target's greedy tokens; sampled acceptance leaves the target's
distribution as it is, for chosen as for sampled drafts. Who drives a walk decides when a row is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from repro.core.late import late
from repro.models.tokens.sampling import draw
from repro.models.tokens.tree import TokenTree

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")

Said = TypeVar("Said")


class Accepted(NamedTuple):
    """The accepted nodes, root first, and the target's own token after the last of them."""

    path: list[int]
    bonus: int


AcceptanceWalk = Generator[int, Said, Accepted]
"""Yields the node at which it wants to know what the target said, is sent that, returns what is accepted."""


def drive(walk: AcceptanceWalk[Said], said: Callable[[int], Said]) -> Accepted:
    """Drive a walk whose answers are at hand."""
    node = next(walk)
    while True:
        try:
            node = walk.send(said(node))
        except StopIteration as end:
            accepted: Accepted = end.value
            return accepted


def greedy(tree: TokenTree) -> AcceptanceWalk[int]:
    """Follow the target's choice from node to node for as long as the tree has it.

    It is sent the target's most likely next token after each node that it asks for.
    """
    path = [0]
    while True:
        choice = yield path[-1]
        child = next((c for c in tree.children(path[-1]) if tree.token(c) == choice), None)
        if child is None:
            return Accepted(path, choice)
        path.append(child)


def sampled(tree: TokenTree, generator: torch.Generator) -> AcceptanceWalk[Tensor]:
    """Multi-step speculative sampling (SpecInfer Alg. 2; Leviathan et al. for a chain).

    At a node the children are tried in their order. One drawn from `q` is accepted with probability
    `min(1, p/q)`, and a rejection leaves `norm(max(0, p - q))`; a chosen child is one drawn from certainty.
    It is sent the target's distribution `[vocab]` after each node that it asks for.

    Deviation: SpecInfer tries a node's children in random order. Any order that does not depend on the drawn
    tokens leaves the distribution as it is; draws from one `q` can change places, so that only where several
    drafts drew does the order matter at all, and then for how many are accepted.

    Args:
        tree: the drafted tree; `tree.drawn` holds each node's `q`, `[vocab]`.
        generator: the source of chance, on the CPU.
    """
    path = [0]
    while True:
        left = yield path[-1]
        child, left = _try_children(tree, path[-1], left, generator)
        if child is None:
            return Accepted(path, draw(left, generator))
        path.append(child)


def _try_children(
    tree: TokenTree, node: int, left: Tensor, generator: torch.Generator
) -> tuple[int | None, Tensor]:
    for child in tree.children(node):
        token, drawn = tree.token(child), tree.drawn[child]
        proposed = drawn if drawn is not None else _certain(token, left)
        if torch.rand((), generator=generator) * proposed[token] < left[token]:
            return child, left
        rest = (left - proposed).clamp(min=0)
        if not rest.any():  # the two differ by rounding alone, and then acceptance was certain
            return child, left
        left = rest / rest.sum()
    return None, left


def _certain(token: int, like: Tensor) -> Tensor:
    out = torch.zeros_like(like)
    out[token] = 1.0
    return out
