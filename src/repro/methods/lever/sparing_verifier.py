"""Verifies a token tree sparingly: nodes pruned in mid-pass (LEVER sec. 4.3), logits on demand.

Owns what is computed of a tree and when. Must not know which nodes are pruned (`pruning`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from repro.libraries import Tensor
from repro.models.forward.chooser import Chooser
from repro.models.forward.network import Step
from repro.models.runtime.arrangement import EarlyExitPoint
from repro.models.runtime.session import Session
from repro.models.runtime.verifier import MASKED, branches_of
from repro.models.tokens.acceptance import Accepted, drive
from repro.models.tokens.tree import TokenTree


class Pruner(Protocol):
    """Drops nodes of a token tree in the middle of its verification.

    Attributes:
        layer: layers of the checkpoint that run before it; mapped to costed layers like all others.
    """

    layer: int

    def keep(self, tree: TokenTree, hidden: Callable[[], Tensor]) -> list[int]:
        """Nodes to keep, root first, with all their ancestors; `hidden` computes `[nodes, h]`."""

    def score_count(self, tree: TokenTree) -> int:
        """Number of tokens it scores, each by one dot product of the hidden size."""


@dataclass(frozen=True)
class SparingVerifier:
    """A `Verifier` that computes less than the whole tree.

    Attributes:
        pruner: drops nodes in mid-pass, which can only shorten the accepted path; None for none.
        on_demand: compute logits only for nodes that the accepted path reaches, one at a time.
    """

    pruner: Pruner | None = None
    on_demand: bool = False

    async def accept(self, session: Session, tree: TokenTree, chooser: Chooser) -> tuple[TokenTree, Accepted]:
        """See `Verifier`.

        Raises:
            RuntimeError: a pruned tree has branches apart, or a token that was drawn twice.
        """
        if self.pruner is None and not self.on_demand:
            return await MASKED.accept(session, tree, chooser)
        branches = branches_of(tree) if session.verifies_apart else []
        nodes = list(dict.fromkeys(tree.prefixes))
        if self.pruner and (branches or len(nodes) < len(tree)):
            raise RuntimeError("a tree is pruned under a tree mask, and only if no token was drawn twice")
        exit_point = _exit_point(self.pruner, tree) if self.pruner else None
        async with session.running(nodes, branches, exit_point) as forward_pass, session.engine.head():
            if forward_pass.survivors is not None:
                tree = tree.only(forward_pass.survivors)
                nodes = tree.prefixes
            index = {prefix: i for i, prefix in enumerate(nodes)}
            if not self.on_demand:
                rows = await session.engine.project(forward_pass.step, len(nodes))
                return tree, drive(chooser.walk(tree), lambda node: rows[index[tree.prefixes[node]]])
            walk = chooser.walk(tree)
            node = next(walk)
            while True:
                (row,) = await session.engine.project(forward_pass.step, 1, [index[tree.prefixes[node]]])
                try:
                    node = walk.send(row)
                except StopIteration as end:
                    return tree, end.value


def _exit_point(pruner: Pruner, tree: TokenTree) -> EarlyExitPoint:
    """The early-exit point at which a pruner judges a tree's nodes."""

    def judge(step: Step) -> list[int]:
        nodes = pruner.keep(tree, step.hidden)
        if len(nodes) < len(tree):
            step.drop(nodes)
        return nodes

    return EarlyExitPoint(pruner.layer, len(tree), pruner.score_count(tree), judge)
