"""LEVER's verification pruning (sec. 4.3): which nodes of a token tree continue after a middle layer.

Owns the decision from scores of each node's candidates. Must not know how a pass drops nodes or how hidden
states are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, fsum

from repro.core.errors import InputError
from repro.libraries import Tensor
from repro.methods.lever.exit_predictor import Candidates, ExitScores
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree


@dataclass(frozen=True)
class PruningRule:
    """Which branches are pruned, and the safeguards against pruning too much.

    A child whose normalized score (Eq. 11) is below the threshold is removed with its whole branch.

    The paper gives none of the values; docs/lever.md says how these were chosen.

    Attributes:
        threshold: theta, the minimum normalized score of a kept child.
        temperature: tau_E of Eq. 11.
        shadow: normalize over all of C(u), including candidates outside the tree; else over u's children.
        safeguards: apply the safeguards below.
        backbone: depth down to which the path of best-scored children is always kept.
        near_root: depth down to which `near_children` applies.
        near_children: best-scored children that each kept node near the root always keeps.
        least_nodes: a tree that would have fewer nodes, root included, is not pruned.
        least_leaves: a tree that would have fewer leaves is not pruned.
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

    def keep(
        self, tree: TokenTree, candidates: Sequence[Candidates], scores: Sequence[Sequence[float]]
    ) -> list[int]:
        """The kept nodes, sorted: always the root, and no node without its parent.

        `candidates[u]` is C(u), including the tokens of u's children; `scores[u]` are their scores in the
        same order. Both are empty for a node without children.

        Raises:
            InputError: a child's token is not among its parent's candidates.
        """
        values = self.values(tree, candidates, scores)
        survivors = self._above(tree, values)
        if not self.safeguards:
            return sorted(survivors)
        survivors |= self._branch(tree, values)
        survivors |= self._near(tree, values, survivors)
        leaf_count = sum(not survivors.intersection(tree.children(node)) for node in survivors)
        if len(survivors) < self.least_nodes or leaf_count < self.least_leaves:
            return list(range(len(tree)))
        return sorted(survivors)

    def values(
        self, tree: TokenTree, candidates: Sequence[Candidates], scores: Sequence[Sequence[float]]
    ) -> list[float]:
        """Normalized score of each node's token at its parent (Eq. 11); 1 for the root."""
        shares = [1.0] * len(tree)
        for node in range(len(tree)):
            children = tree.children(node)
            if not children:
                continue
            index = {token: i for i, token in enumerate(candidates[node])}
            extras = {tree.token(child) for child in children}.difference(index)
            if extras:
                raise InputError(
                    f"node {node} has candidates {candidates[node]}, but also children {sorted(extras)}"
                )
            child_indices = sorted({index[tree.token(child)] for child in children})
            indices = list(range(len(index))) if self.shadow else child_indices
            best_score = max(scores[node][i] for i in indices)
            weights = {i: exp((scores[node][i] - best_score) / self.temperature) for i in indices}
            total = fsum(weights.values())
            for child in children:
                shares[child] = weights[index[tree.token(child)]] / total
        return shares

    def _above(self, tree: TokenTree, values: Sequence[float]) -> set[int]:
        """The root, and the nodes that reach the threshold with all their ancestors."""
        survivors = {0}
        for node in range(1, len(tree)):
            if tree.parents[node] in survivors and values[node] >= self.threshold:
                survivors.add(node)
        return survivors

    def _branch(self, tree: TokenTree, values: Sequence[float]) -> set[int]:
        """The backbone: from the root, the best-scored child at each depth."""
        backbone, node = {0}, 0
        for _ in range(self.backbone):
            children = tree.children(node)
            if not children:
                break
            node = max(children, key=values.__getitem__)
            backbone.add(node)
        return backbone

    def _near(self, tree: TokenTree, values: Sequence[float], survivors: set[int]) -> set[int]:
        """The best children of kept nodes near the root, level by level."""
        level, best_children = [0], set[int]()
        for _ in range(self.near_root):
            next_level = []
            for node in level:
                children = sorted(tree.children(node), key=lambda child: -values[child])
                best_children.update(children[: self.near_children])
                next_level += [child for child in children if child in survivors or child in best_children]
            level = next_level
        return best_children


class EarlyExit:
    """Prunes a token tree after a middle layer of the target (a `SparingVerifier`'s pruner).

    Pruning keeps answers lossless: it can only shorten the accepted path, whose last token is the target's.
    This holds for sampled answers too if children are top candidates instead of samples, since pruning is
    then independent of the acceptance draws.

    Attributes:
        layer: number of computed layers of the network when it prunes.
    """

    def __init__(
        self, predictor: ExitScores, rule: PruningRule, candidates_after: Callable[[Prefix], Candidates]
    ) -> None:
        """`candidates_after` returns the draft's C(u) after a sequence, () if the draft did not expand it."""
        self.layer = predictor.layer
        self._predictor = predictor
        self._rule = rule
        self._proposed = candidates_after

    def candidates(self, tree: TokenTree) -> list[Candidates]:
        """Candidates to score at each node with children: its children, and C(u) if `shadow`."""
        candidates_by_row: list[Candidates] = []
        for node, prefix in enumerate(tree.prefixes):
            child_tokens = [tree.token(child) for child in tree.children(node)]
            shadows = self._proposed(prefix) if child_tokens and self._rule.shadow else ()
            candidates_by_row.append(tuple(dict.fromkeys([*shadows, *child_tokens])))
        return candidates_by_row

    def keep(self, tree: TokenTree, hidden: Callable[[], Tensor]) -> list[int]:
        """Kept nodes, sorted, the root first; `hidden` computes fp32 `[nodes, d]` after layer `layer`."""
        candidates = self.candidates(tree)
        return self._rule.keep(tree, candidates, self._predictor.scores(tree.prefixes, candidates, hidden))

    def score_count(self, tree: TokenTree) -> int:
        """Number of scored tokens; each is a dot product of the hidden size."""
        return sum(map(len, self.candidates(tree)))
