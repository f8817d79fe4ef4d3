"""Chain speculative decoding with a fixed draft length (Leviathan et al., ICML 2023): LEVER's baseline
Chain-SD (sec. 5.1), and EdgeLLM's baseline SP.
"""

from __future__ import annotations

from dataclasses import dataclass

from repro.core.bounds import DraftTokens, Layers
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

    def look_ahead(self, role: str, answer_length: int) -> int:
        """See `Method`."""
        return self.length

    async def grow(self, decoding: Decoding, draft: Session) -> tuple[TokenTree, str]:
        """Draft token after token, each from the one before."""
        tree = TokenTree(decoding.text)
        for end in range(self.length):
            (row,) = await draft.forward([tree.prefixes[end]])
            tree.grow(end, *decoding.chooser.propose(row))
        return tree, "length"


@register("method", "sp")
@dataclass(frozen=True)
class SpeculativeDecoding(ChainSD):
    """A chain of fixed length, verified in the standard engine: read a layer, then compute it.

    EdgeLLM does not give the length. Leviathan et al. (Table 2) draft 7 tokens with T5-small for greedy
    translation, which most of EdgeLLM's tasks are, and 5 for greedy summarisation.

    Attributes:
        length: draft tokens per round.
        prefetch: layers that are read ahead.
    """

    length: DraftTokens = 7
    prefetch: Layers = 0
