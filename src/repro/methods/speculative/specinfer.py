"""SpecInfer (Miao et al., ASPLOS 2024), EdgeLLM's baseline SI: fixed-shape trees of one or more drafts.

Must not know the kind of device or how drafts were trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated

from annotated_types import Interval

from repro.core.bounds import DraftTokens, Layers
from repro.core.registry import register
from repro.core.typed import require
from repro.device.emulated import Device
from repro.methods.base import Decoding, Generation, Request, Sessions
from repro.methods.speculative.speculative import Speculative, speculate
from repro.models.forward.network import Ranks
from repro.models.runtime.placement import RESIDENT, Placement
from repro.models.runtime.session import Session
from repro.models.tokens.tree import TokenTree


@register("method", "specinfer")
@dataclass(frozen=True)
class SpecInfer(Speculative):
    """Each draft grows a tree level by level, one pass per level; the target verifies the merged tree.

    Greedy requests follow the target's choices; sampled ones are verified by multi-step speculative sampling
    (`models.tokens.acceptance.sampled`), with children sampled from the draft instead of its top candidates.

    Deviation: SpecInfer distributes its drafts over GPUs; here they share a processor and run in turn.

    Attributes:
        expansion: children per node at each level (SpecInfer's default).
        drafts: number of drafts; their roles are `draft`, `draft_2`, `draft_3` and so on.
        prefetch: layers that are read ahead; none in EdgeLLM's standard engine.
    """

    expansion: tuple[Ranks, ...] = (1, 1, 3, 1, 1, 1, 1, 1)
    drafts: Annotated[int, Interval(ge=1, le=16)] = 1
    prefetch: Layers = 0

    def __post_init__(self) -> None:
        require(DraftTokens, self._nodes, "method.expansion lists children a step, and the number of nodes")

    def places(self) -> Mapping[str, Placement]:
        """The target in flash, the drafts in memory."""
        roles = (f"draft_{number}" for number in range(2, self.drafts + 1))
        return {**super().places(), **dict.fromkeys(roles, RESIDENT)}

    @property
    def draft_ranks(self) -> int:
        """See `Speculative`: the children of a node."""
        return max(self.expansion)

    def look_ahead(self, role: str, answer_length: int) -> int:
        """See `Method`: the target verifies the trees of all drafts."""
        return self._nodes * (self.drafts if role == "target" else 1)

    @property
    def _nodes(self) -> int:
        """Draft tokens of one draft's tree."""
        return sum(prod(self.expansion[: depth + 1]) for depth in range(len(self.expansion)))

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Draft, merge and verify until the answer ends."""
        drafts = [session for role, session in sessions.items() if role != "target"]

        async def grow(decoding: Decoding) -> tuple[TokenTree, str]:
            trees = [(await self.grow(decoding, draft))[0] for draft in drafts]
            return merge(trees), "depth"

        return await speculate(request, device, sessions["target"], drafts, grow)

    async def grow(self, decoding: Decoding, draft: Session) -> tuple[TokenTree, str]:
        """Grow one draft's tree by `expansion`."""
        tree, level = TokenTree(decoding.text), [0]
        for width in self.expansion:
            rows = await draft.forward([tree.prefixes[node] for node in level])
            children = [
                tree.grow(node, *proposal)
                for node, row in zip(level, rows, strict=True)
                for proposal in decoding.chooser.branch(row, width)
            ]
            # A token sampled twice counts as two draws but is expanded once.
            level = [node for node in children if tree.find(tree.prefixes[node]) == node]
        return tree, "depth"


def merge(trees: Iterable[TokenTree]) -> TokenTree:
    """Merge trees with a common root into one with all their sequences (SpecInfer sec. 3, Def. 3.2).

    Sampled nodes keep their draft distributions; children of duplicate sequences go below the first node.
    """
    first_tree, *other_trees = trees
    merged_tree = first_tree.below(first_tree.root)
    for tree in other_trees:
        for node in range(1, len(tree)):
            parent = merged_tree.find(tree.prefixes[tree.parents[node]])
            assert parent is not None, "parents come before children"
            merged_tree.grow(parent, tree.token(node), tree.logps[node], tree.distributions[node])
    return merged_tree
