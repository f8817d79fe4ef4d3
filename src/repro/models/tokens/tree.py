"""Draft tokens as a tree: the root is the last emitted token, every other node a guess at what follows.

Knows nothing of how tokens are drafted or verified.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from repro.models.tokens.prefix import Prefix

if TYPE_CHECKING:
    from torch import Tensor


class TokenTree:
    """A token tree. Node 0 is the root; parents come before children.

    Attributes:
        prefixes: for each node the whole sequence that ends in it.
        parents: for each node its parent, -1 for the root.
        logps: for each node the draft's log-probability of its token after its parent, 0 for the root.
        drawn: for each node the distribution `[vocab]` that its token was sampled from, `None` where the
            token was chosen and not sampled.
    """

    def __init__(self, root: Prefix) -> None:
        self.prefixes = [root]
        self.parents = [-1]
        self.logps = [0.0]
        self.drawn: list[Tensor | None] = [None]
        self._reach = [0.0]
        self._children: list[list[int]] = [[]]

    def __len__(self) -> int:
        return len(self.prefixes)

    @property
    def root(self) -> Prefix:
        """The sequence up to and with the last emitted token."""
        return self.prefixes[0]

    def grow(self, parent: int, token: int, logp: float = 0.0, drawn: Tensor | None = None) -> int:
        """Add a child and return its index; a chosen token that is there already is returned, not added."""
        prefix = self.prefixes[parent].then(token)
        if drawn is None:
            for child in self._children[parent]:
                if self.prefixes[child] is prefix:
                    return child
        node = len(self)
        self.prefixes.append(prefix)
        self.parents.append(parent)
        self.logps.append(logp)
        self.drawn.append(drawn)
        self._reach.append(self._reach[parent] + logp)
        self._children.append([])
        self._children[parent].append(node)
        return node

    def token(self, node: int) -> int:
        """A node's token."""
        return self.prefixes[node].token

    def children(self, node: int) -> Sequence[int]:
        """A node's children, in the order in which they were added."""
        return self._children[node]

    def leaves(self) -> Iterator[int]:
        """Nodes without children; the bare root is one."""
        return (node for node in range(len(self)) if not self._children[node])

    def depth(self, node: int) -> int:
        """Edges from the root."""
        return self.prefixes[node].length - self.root.length

    @property
    def height(self) -> int:
        """The largest depth."""
        return max(self.depth(node) for node in range(len(self)))

    def confidence(self, node: int) -> float:
        """The draft's probability of the whole path from the root to a node."""
        return math.exp(self._reach[node])

    def path(self, node: int) -> list[int]:
        """Nodes from the root to a node."""
        out = []
        while node >= 0:
            out.append(node)
            node = self.parents[node]
        return out[::-1]

    def branch_length(self, node: int) -> int:
        """Length of the branch through a node; of several the most confident's."""
        through = [leaf for leaf in self.leaves() if node in self.path(leaf)]
        return self.depth(max(through, key=self.confidence))

    def find(self, prefix: Prefix) -> int | None:
        """The node that ends in a sequence, if there is one."""
        return next((node for node, have in enumerate(self.prefixes) if have is prefix), None)

    def only(self, nodes: Sequence[int]) -> TokenTree:
        """The tree of these nodes alone, in their order: the root first, parents before their children."""
        out, index = TokenTree(self.root), {0: 0}
        for node in nodes[1:]:
            parent = index[self.parents[node]]
            index[node] = out.grow(parent, self.token(node), self.logps[node], self.drawn[node])
        return out

    def below(self, root: Prefix) -> TokenTree:
        """The part of the tree under a sequence, which becomes the root; bare if no node ends in it."""
        top, out = self.find(root), TokenTree(root)
        if top is None:
            return out
        index = {top: 0}
        for node in range(top + 1, len(self)):
            if self.parents[node] in index:
                parent = index[self.parents[node]]
                index[node] = out.grow(parent, self.token(node), self.logps[node], self.drawn[node])
        return out
