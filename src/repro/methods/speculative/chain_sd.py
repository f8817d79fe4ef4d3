"""Chain speculative decoding with a fixed draft length (Leviathan et al.; LEVER sec. 5.1 "Chain-SD")."""

from __future__ import annotations

from dataclasses import dataclass

from repro.core.bounds import DraftTokens
from repro.core.registry import register
from repro.methods.base import Decoding
from repro.methods.speculative.speculative import Speculative
from repro.models.runtime.session import Session
from repro.models.tokens.tree import TokenTree


@register("method", "chain_sd")
@dataclass(frozen=True)
class ChainSD(Speculative):
    """A chain of `length` draft tokens per round."""

    length: DraftTokens = 8

    @property
    def draft_ranks(self) -> int:
        """See `Speculative`: a chain of first choices."""
        return 1

    def look_ahead(self, role: str, answer: int) -> int:
        """See `Method`."""
        return self.length

    async def grow(self, decoding: Decoding, draft: Session) -> tuple[TokenTree, str]:
        """Draft token after token, each from the one before."""
        tree = TokenTree(decoding.text)
        for end in range(self.length):
            (row,) = await draft.forward([tree.prefixes[end]])
            tree.grow(end, *decoding.chooser.propose(row))
        return tree, "length"
