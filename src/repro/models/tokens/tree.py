"""The token tree: the root is the last emitted token, every other node is a draft token.

Must not know how tokens are drafted or verified.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from repro.libraries import Tensor
from repro.models.tokens.prefix import Prefix


class TokenTree:
    """A token tree. Node 0 is the root; parents come before children.

    Attributes:
        prefixes: each node's whole sequence.
        parents: each node's parent, -1 for the root.
        logps: each node's log-probability under the draft, given its parent; 0 for the root.
        distributions: what each node's token was sampled from, `[vocab]`; `None` if it was not sampled.
    """

    def __init__(self, root: Prefix) -> None:
        self.prefixes = [root]
        self.parents = [-1]
        self.logps = [0.0]
        self.distributions: list[Tensor | None] = [None]
        self._reach = [0.0]
        self._children: list[list[int]] = [[]]

    def __len__(self) -> int:
        return len(self.prefixes)

    @property
    def root(self) -> Prefix:
        """The sequence up to and including the last emitted token."""
        return self.prefixes[0]

    def grow(self, parent: int, token: int, logp: float = 0.0, distribution: Tensor | None = None) -> int:
        """Add a child and return its index; an existing child is returned if the token was not sampled."""
        prefix = self.prefixes[parent].then(token)
        if distribution is None:
            for child in self._children[parent]:
                if self.prefixes[child] is prefix:
                    return child
        node = len(self)
        self.prefixes.append(prefix)
        self.parents.append(parent)
        self.logps.append(logp)
        self.distributions.append(distribution)
        self._reach.append(self._reach[parent] + logp)
        self._children.append([])
        self._children[parent].append(node)
        return node

    def token(self, node: int) -> int:
        """A node's token."""
        return self.prefixes[node].token

    def children(self, node: int) -> Sequence[int]:
        """A node's children in insertion order."""
        return self._children[node]

    def leaves(self) -> Iterator[int]:
        """Nodes without children, including a root without children."""
        return (node for node in range(len(self)) if not self._children[node])

    def depth(self, node: int) -> int:
        """Number of edges from the root."""
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
        nodes = []
        while node >= 0:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def branch_length(self, node: int) -> int:
        """Length of the branch through a node; of several, the one with the highest confidence."""
        through = [leaf for leaf in self.leaves() if node in self.path(leaf)]
        return self.depth(max(through, key=self.confidence))

    def find(self, prefix: Prefix) -> int | None:
        """The node of a sequence, or None."""
        return next((node for node, have in enumerate(self.prefixes) if have is prefix), None)

    def only(self, nodes: Sequence[int]) -> TokenTree:
        """The subtree of the given nodes, which must list the root first and parents before children."""
        tree, index = TokenTree(self.root), {0: 0}
        for node in nodes[1:]:
            parent = index[self.parents[node]]
            index[node] = tree.grow(parent, self.token(node), self.logps[node], self.distributions[node])
        return tree

    def below(self, root: Prefix) -> TokenTree:
        """The subtree below a sequence, which becomes the root; only the root if no node matches."""
        top, tree = self.find(root), TokenTree(root)
        if top is None:
            return tree
        index = {top: 0}
        for node in range(top + 1, len(self)):
            if self.parents[node] in index:
                parent = index[self.parents[node]]
                index[node] = tree.grow(parent, self.token(node), self.logps[node], self.distributions[node])
        return tree
