"""LEVER's verification pruning (sec. 4.3): which nodes of a token tree go on from a middle layer.

Owns the decision, from scores of each node's candidates. Knows nothing of how a pass is cut short, nor of
what computes the hidden rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repro.core.errors import InputError
from repro.core.late import late
from repro.models.drafting.early_exit import Candidates, ExitPredictor
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")


@dataclass(frozen=True)
class PruningRule:
    """Which branches are cut, and what keeps a cut from going too far.

    A child whose normalised score (Eq. 11) is below the threshold is removed, and its whole branch with it,
    so that the ancestors of what is kept are kept.

    The paper gives none of the values; docs/lever.md says how these were chosen.

    Attributes:
        threshold: theta, the least normalised score of a child that stays.
        temperature: tau_E of Eq. 11.
        shadow: all of C(u) is compared, also candidates that are not in the tree; else only u's children.
        safeguards: the backbone, the children near the root and the rejection below; else none of them.
        backbone: depth down to which the path of best-scored children is kept whatever their scores.
        near_root: depth of the deepest children that are kept for their rank alone.
        near_children: how many best-scored children each kept node down to there keeps at least.
        least_nodes: a tree that would have fewer nodes, root included, is not pruned at all.
        least_leaves: neither is one that would have fewer leaves.
    """

    threshold: float = 0.01
    temperature: float = 1.0
    shadow: bool = True
    safeguards: bool = True
    backbone: int = 16
    near_root: int = 1
    near_children: int = 2
    least_nodes: int = 4
    least_leaves: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise InputError(f"pruning.threshold is {self.threshold}; a normalised score is 0 to 1")
        if not self.temperature > 0:
            raise InputError(f"pruning.temperature is {self.temperature}; it must be above 0")
        for name in ("backbone", "near_root", "near_children", "least_nodes", "least_leaves"):
            if getattr(self, name) < 0:
                raise InputError(f"pruning.{name} is {getattr(self, name)}; it is a count, 0 or more")

    def keep(self, tree: TokenTree, candidates: Sequence[Candidates], scores: Sequence[Tensor]) -> list[int]:
        """The nodes that go on, in order: the root, and no node without its parent.

        `candidates[u]` holds C(u) with the tokens of u's children among it, `scores[u]` their scores in the
        same order, `[len(candidates[u])]`. Both are empty for a node without children.

        Raises:
            InputError: a child's token is not among its parent's candidates.
        """
        values = self.values(tree, candidates, scores)
        kept = self._above(tree, values)
        if not self.safeguards:
            return sorted(kept)
        kept |= self._branch(tree, values)
        kept |= self._near(tree, values, kept)
        leaves = sum(not kept.intersection(tree.children(node)) for node in kept)
        if len(kept) < self.least_nodes or leaves < self.least_leaves:
            return list(range(len(tree)))
        return sorted(kept)

    def values(
        self, tree: TokenTree, candidates: Sequence[Candidates], scores: Sequence[Tensor]
    ) -> list[float]:
        """For each node the normalised score of its token at its parent (Eq. 11), 1 for the root."""
        out = [1.0] * len(tree)
        for node in range(len(tree)):
            children = tree.children(node)
            if not children:
                continue
            place = {token: i for i, token in enumerate(candidates[node])}
            missing = {tree.token(child) for child in children}.difference(place)
            if missing:
                raise InputError(
                    f"node {node} has candidates {candidates[node]}, but also children {sorted(missing)}"
                )
            own = sorted({place[tree.token(child)] for child in children})
            compared = list(range(len(place))) if self.shadow else own
            shares = torch.softmax(scores[node][compared].double() / self.temperature, -1).tolist()
            share = dict(zip(compared, shares, strict=True))
            for child in children:
                out[child] = share[place[tree.token(child)]]
        return out

    def _above(self, tree: TokenTree, values: Sequence[float]) -> set[int]:
        """The root, and the nodes that the threshold spares together with all their ancestors."""
        kept = {0}
        for node in range(1, len(tree)):
            if tree.parents[node] in kept and values[node] >= self.threshold:
                kept.add(node)
        return kept

    def _branch(self, tree: TokenTree, values: Sequence[float]) -> set[int]:
        """The backbone: from the root the most reliable child at each depth."""
        kept, node = {0}, 0
        for _ in range(self.backbone):
            children = tree.children(node)
            if not children:
                break
            node = max(children, key=values.__getitem__)
            kept.add(node)
        return kept

    def _near(self, tree: TokenTree, values: Sequence[float], kept: set[int]) -> set[int]:
        """The best children of kept nodes near the root, level by level."""
        level, more = [0], set[int]()
        for _ in range(self.near_root):
            below = []
            for node in level:
                ranked = sorted(tree.children(node), key=lambda child: -values[child])
                more.update(ranked[: self.near_children])
                below += [child for child in ranked if child in kept or child in more]
            level = below
        return more


class EarlyExit:
    """Looks at a tree after a middle layer of the target, and says which nodes go on (a `Session`'s pruner).

    Whatever it removes, answers stay the target's own: a shorter path is accepted at most, and its last token
    is the target's. That holds for sampled answers too as long as children were chosen, not drawn: which of
    them are left does not depend on the chance by which they are accepted.

    Attributes:
        layer: real layers that have been computed when it looks.
    """

    def __init__(
        self, predictor: ExitPredictor, rule: PruningRule, proposed: Callable[[Prefix], Candidates]
    ) -> None:
        """`proposed` gives what the draft holds possible after a sequence, () where it was not asked."""
        self.layer = predictor.layer
        self._predictor = predictor
        self._rule = rule
        self._proposed = proposed

    def candidates(self, tree: TokenTree) -> list[Candidates]:
        """What is scored at each node with children: C(u) if shadows count, and its children."""
        out: list[Candidates] = []
        for node, prefix in enumerate(tree.prefixes):
            own = [tree.token(child) for child in tree.children(node)]
            shadows = self._proposed(prefix) if own and self._rule.shadow else ()
            out.append(tuple(dict.fromkeys([*shadows, *own])))
        return out

    def keep(self, tree: TokenTree, hidden: Tensor) -> list[int]:
        """Nodes that go on, sorted, the root first; `hidden` is fp32 `[nodes, d]` after layer `layer`."""
        candidates = self.candidates(tree)
        return self._rule.keep(tree, candidates, self._predictor.scores(hidden, candidates))

    def scored(self, tree: TokenTree) -> int:
        """How many tokens it scores, each by a product of the hidden width with a row of W."""
        return sum(map(len, self.candidates(tree)))
