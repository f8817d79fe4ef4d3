"""How a request's tokens are chosen: what a draft proposes and what a target accepts, greedy or sampled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from repro.core.late import late
from repro.models.forward.network import Logits
from repro.models.tokens import acceptance
from repro.models.tokens.acceptance import AcceptanceWalk, Said
from repro.models.tokens.sampling import Sampling, draw
from repro.models.tokens.tree import TokenTree

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")


class Proposal(NamedTuple):
    """A drafted token, its log-probability, and the distribution that it was drawn from (`None`: chosen)."""

    token: int
    logp: float
    drawn: Tensor | None


class Chooser(Protocol):
    """One request's way of choosing."""

    greedy: bool

    def first(self, row: Logits) -> int:
        """The token that follows, from the target alone."""

    def propose(self, row: Logits) -> Proposal:
        """The token that a draft puts forward in a chain."""

    def branch(self, row: Logits, count: int) -> list[Proposal]:
        """So many tokens that a draft puts forward side by side."""

    def walk(self, tree: TokenTree) -> AcceptanceWalk[Logits]:
        """The accepted path of a tree, and the target's own next token; asks for rows on its way."""


class Greedy:
    """The most likely token, always."""

    greedy = True

    def first(self, row: Logits) -> int:
        """The most likely token."""
        return row.choice

    def propose(self, row: Logits) -> Proposal:
        """The draft's most likely token."""
        (proposal,) = self.branch(row, 1)
        return proposal

    def branch(self, row: Logits, count: int) -> list[Proposal]:
        """The draft's most likely tokens."""
        return [Proposal(token, logp, None) for token, logp in row.top(count)]

    def walk(self, tree: TokenTree) -> AcceptanceWalk[Logits]:
        """Follow the target's choices."""
        return translated(acceptance.greedy(tree), lambda row: row.choice)


class Sampled:
    """Draws from the target's distribution, and from the draft's to propose."""

    greedy = False

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self._sampling = sampling
        self._chance = torch.Generator().manual_seed(seed)

    def first(self, row: Logits) -> int:
        """A draw from the target."""
        return draw(self._probabilities(row), self._chance)

    def propose(self, row: Logits) -> Proposal:
        """A draw from the draft, with the distribution that it came from."""
        probabilities = self._probabilities(row)
        token = draw(probabilities, self._chance)
        return Proposal(token, float(probabilities[token].log()), probabilities)

    def branch(self, row: Logits, count: int) -> list[Proposal]:
        """As many draws, each from the whole distribution; one token may come several times."""
        return [self.propose(row) for _ in range(count)]

    def walk(self, tree: TokenTree) -> AcceptanceWalk[Logits]:
        """Speculative sampling over the tree."""
        return translated(acceptance.sampled(tree, self._chance), self._probabilities)

    def _probabilities(self, row: Logits) -> Tensor:
        return self._sampling.probabilities(row.logits).cpu()


def translated(walk: AcceptanceWalk[Said], meaning: Callable[[Logits], Said]) -> AcceptanceWalk[Logits]:
    """A walk that is sent rows, from one that is sent what is made of them."""
    node = next(walk)
    while True:
        row = yield node
        try:
            node = walk.send(meaning(row))
        except StopIteration as end:
            accepted: acceptance.Accepted = end.value
            return accepted


def chooser(sampling: Sampling, seed: int) -> Chooser:
    """The way of choosing that a request asks for."""
    return Greedy() if sampling.greedy else Sampled(sampling, seed)
