"""How a token tree is verified: which of its nodes are computed, side by side or under one mask.

Owns the two ways that several methods use; a method with one of its own gives `Session.verify` a `Verifier`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from repro.models.forward.chooser import Chooser
from repro.models.tokens.acceptance import Accepted, drive
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree

if TYPE_CHECKING:
    from repro.models.runtime.session import Session


class Verifier(Protocol):
    """Computes what it needs of a token tree in one forward pass, and finds the accepted path."""

    async def accept(self, session: Session, tree: TokenTree, chooser: Chooser) -> tuple[TokenTree, Accepted]:
        """The verified tree, without nodes that were dropped; its accepted path and the next token."""


@dataclass(frozen=True)
class WholeTree:
    """Computes the logits of all nodes.

    Attributes:
        apart: run the branches as a batch padded to the longest (EdgeLLM sec. III-B) in place of one
            sequence under a tree mask; always so for encoder-decoders.
    """

    apart: bool = False

    async def accept(self, session: Session, tree: TokenTree, chooser: Chooser) -> tuple[TokenTree, Accepted]:
        """See `Verifier`."""
        branches = branches_of(tree) if self.apart or session.verifies_apart else []
        rows = await session.forward(tree.prefixes, branches, late=True)
        return tree, drive(chooser.walk(tree), rows.__getitem__)


MASKED = WholeTree()


def branches_of(tree: TokenTree) -> list[Prefix]:
    """The whole text of each leaf."""
    return [tree.prefixes[leaf] for leaf in tree.leaves()]
