"""Token choice for one request: what a draft proposes and what the target accepts, greedy or sampled."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from repro.libraries import Tensor, torch
from repro.models.forward.network import Logits, require_finite
from repro.models.tokens import acceptance
from repro.models.tokens.acceptance import AcceptanceWalk, Output
from repro.models.tokens.sampling import Sampling, draw
from repro.models.tokens.tree import TokenTree


class Proposal(NamedTuple):
    """A draft token, its log-probability, and the distribution it was sampled from (`None` if greedy)."""

    token: int
    logp: float
    distribution: Tensor | None


class Chooser(Protocol):
    """Chooses the tokens of one request."""

    greedy: bool

    def first(self, row: Logits) -> int:
        """The next token from the target's logits alone."""

    def propose(self, row: Logits) -> Proposal:
        """The draft's token for the next node of a chain."""

    def branch(self, row: Logits, count: int) -> list[Proposal]:
        """`count` draft tokens for sibling nodes of a tree."""

    def walk(self, tree: TokenTree) -> AcceptanceWalk[Logits]:
        """Generator: yields a node, receives the target's logits there, returns the accepted path."""


class Greedy:
    """Always takes the most likely token."""

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
        """Greedy acceptance: follow the target's argmax from node to node."""
        return translate(acceptance.greedy(tree), lambda row: row.choice)


class Sampled:
    """Samples emitted tokens from the target's distribution and proposals from the draft's."""

    greedy = False

    def __init__(self, sampling: Sampling, seed: int) -> None:
        self._sampling = sampling
        self._chance = torch.Generator().manual_seed(seed)

    def first(self, row: Logits) -> int:
        """A sample from the target's distribution."""
        return draw(self._probabilities(row), self._chance)

    def propose(self, row: Logits) -> Proposal:
        """A sample from the draft, with its distribution."""
        probabilities = self._probabilities(row)
        token = draw(probabilities, self._chance)
        return Proposal(token, float(probabilities[token].log()), probabilities)

    def branch(self, row: Logits, count: int) -> list[Proposal]:
        """`count` independent samples with replacement; a token may occur more than once."""
        return [self.propose(row) for _ in range(count)]

    def walk(self, tree: TokenTree) -> AcceptanceWalk[Logits]:
        """Speculative sampling over the tree."""
        return translate(acceptance.sample(tree, self._chance), self._probabilities)

    def _probabilities(self, row: Logits) -> Tensor:
        logits = row.logits
        require_finite(float(logits.max()))
        return self._sampling.probabilities(logits).cpu()


def translate(walk: AcceptanceWalk[Output], meaning: Callable[[Logits], Output]) -> AcceptanceWalk[Logits]:
    """Adapt a walk so that it receives logits, which `meaning` converts to what the walk expects."""
    node = next(walk)
    while True:
        row = yield node
        try:
            node = walk.send(meaning(row))
        except StopIteration as end:
            accepted: acceptance.Accepted = end.value
            return accepted


def chooser(sampling: Sampling, seed: int) -> Chooser:
    """The greedy or the sampled chooser, as `sampling` says."""
    return Greedy() if sampling.greedy else Sampled(sampling, seed)
