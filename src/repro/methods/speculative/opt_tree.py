"""OPT-Tree (Wang et al., TACL 2025), LEVER's baseline: the tree of a given size with the largest expected
acceptance length.

Must not know the costs of drafting or verifying.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest

from repro.core.bounds import DraftTokens, Share
from repro.core.registry import register
from repro.methods.base import Decoding
from repro.methods.speculative.speculative import Speculative
from repro.models.forward.network import Logits, Ranks
from repro.models.runtime.session import Session
from repro.models.tokens.tree import TokenTree


@register("method", "opt_tree")
@dataclass(frozen=True)
class OptTree(Speculative):
    """Drafts layers of the `nodes` most likely paths; the target verifies the `nodes` most likely of all.

    A path's likelihood is the product of the draft's probabilities along it; the sum over nodes is the
    expected number of accepted tokens. Children are top candidates also for sampled requests; verification
    keeps the target's distribution.

    Deviation: the public code tests for the end before it considers the layer just drafted, and so drafts one
    layer more than the paper's algorithm, which is followed here.

    Attributes:
        nodes: verified draft tokens (without the root), and nodes per layer. 50 is the default of the public
            code; the paper chooses from 25, 50 and 60.
        threshold: drafting stops after a layer that raises the expected number by at most this; the paper's
            delta, 0.5 in the public code.
        depth: maximum layers, 10 in the public code.
    """

    nodes: Ranks = 50
    threshold: Share = 0.5
    depth: DraftTokens = 10

    @property
    def draft_ranks(self) -> int:
        """See `Speculative`: a node's children are at most all nodes of a layer."""
        return self.nodes

    def look_ahead(self, role: str, answer_length: int) -> int:
        """See `Method`: the draft computes all layers but the last, the target verifies one's number."""
        return self.nodes * (1 if role == "target" else self.depth - 1)

    async def grow(self, decoding: Decoding, draft: Session) -> tuple[TokenTree, str]:
        """Draft layer by layer until one adds too little, then select the nodes to verify."""
        tree, layer, length = TokenTree(decoding.text), [0], 0.0
        for _ in range(self.depth):
            rows = await draft.forward([tree.prefixes[node] for node in layer])
            layer = self._next_layer(tree, layer, rows)
            old_length, length = length, sum(map(tree.confidence, likeliest(tree, self.nodes)))
            if length - old_length <= self.threshold:
                return likeliest_subtree(tree, self.nodes), "threshold"
        return likeliest_subtree(tree, self.nodes), "depth"

    def _next_layer(self, tree: TokenTree, layer: Sequence[int], rows: Sequence[Logits]) -> list[int]:
        """The `nodes` most likely children over all nodes of a layer."""

        def children() -> Iterator[tuple[float, int, int, float]]:
            for node, row in zip(layer, rows, strict=True):
                for token, logp in row.top(self.nodes):
                    yield tree.confidence(node) * math.exp(logp), node, token, logp

        best_children = nlargest(self.nodes, children(), key=lambda child: child[0])
        return [tree.grow(node, token, logp) for _, node, token, logp in best_children]


def likeliest(tree: TokenTree, count: int) -> list[int]:
    """The `count` nodes with the most likely paths, without the root; closed under ancestors, which are at
    least as likely and win ties."""
    return nlargest(count, range(1, len(tree)), key=tree.confidence)


def likeliest_subtree(tree: TokenTree, count: int) -> TokenTree:
    """The subtree of the `count` likeliest nodes."""
    return tree.only([0, *sorted(likeliest(tree, count))])
