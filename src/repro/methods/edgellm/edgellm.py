"""EdgeLLM (IEEE TMC 2024): confidence-guided token trees, adaptive fallback to verification, and provisional
generation while the target's layers load.

See `docs/edgellm.md` for what the paper leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, NamedTuple

from annotated_types import Interval

from repro.core.bounds import DraftTokens, Layers, Nodes, Part, Share
from repro.core.registry import register
from repro.device.emulated import Device
from repro.methods.base import Decoding, Generation, Method, Request, Sessions
from repro.methods.speculative.speculative import begin
from repro.models.forward.network import Ranks
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import Placement
from repro.models.runtime.session import Session, Verification, WholeTree
from repro.models.tokens.tree import TokenTree

HIGHEST_THRESHOLD = 0.9
"""Upper bound of alpha. Deviation: the paper does not bound alpha; above 1 no tree could grow."""


class Branch(NamedTuple):
    """A possible next node: rank 0 continues a branch; a later rank `opens` a new branch."""

    parent: int
    token: int
    logp: float
    confidence: float
    length: DraftTokens
    opens: bool


@dataclass(frozen=True)
class EdgeLLM(Method):
    """Branch navigation, self-adaptive fallback and provisional generation.

    Attributes:
        navigation: draft a tree (BNV of Fig. 22) instead of a chain.
        choices: draft candidates per node that may extend the tree.
        fallback: end a round when the tree's confidence falls below alpha (SF of Fig. 22) instead of after
            `length` draft tokens.
        alpha: initial fallback threshold (sec. III-C: 0.01).
        shrink: factor on alpha after a round without a draft error (Eq. 3: 0.5).
        update: alpha after an error: `exponential`, alpha / T_c^((N_all - N_correct) / N_all), as the text
            describes, or `printed`, (N_all - N_correct) / N_all, as Eq. 3 stands.
        length: draft tokens per round without fallback, as in the baseline SP.
        limit: maximum draft tokens in a tree. Deviation: the paper gives no bound; its trees average 12-15.
        provisional: drafting during verification (PP of Fig. 22): in the `gaps` in which the target waits
            for layers; `naive`, at the target's priority (Fig. 13); or `never`.
        ahead: maximum draft tokens that provisional generation adds.
        verification: all branches under one `tree` mask, or as a mini-batch of `branches` (sec. III-B).
        memory: share of the device's memory up to which target layers are read ahead (sec. III-D); `None`
            uses the device file's `dram.read_ahead`, 0 uses `prefetch`.
        resident: share of the target's layers in memory.
        prefetch: layers read ahead if `memory` is 0 or without provisional generation.
        draft_swaps: stream a draft that does not fit the memory instead of raising an error (Fig. 19).
    """

    version: ClassVar[int] = 1  # before, the draft's pass over the prompt was decoding

    navigation: bool = True
    choices: Ranks = 2
    fallback: bool = True
    alpha: Annotated[float, Interval(gt=0, lt=1)] = 0.01
    shrink: Part = 0.5
    update: Literal["exponential", "printed"] = "exponential"
    length: DraftTokens = 7
    limit: DraftTokens = 15
    provisional: Literal["gaps", "naive", "never"] = "gaps"
    ahead: Nodes = 15
    verification: Literal["tree", "branches"] = "tree"
    memory: Share | None = None
    resident: Share = 0.0
    prefetch: Layers = 1
    draft_swaps: bool = False

    def places(self) -> Mapping[str, Placement]:
        """Target in flash, read ahead even between verifications; draft in memory, one op per layer to fit
        into gaps."""
        on = self.provisional != "never"
        target = Placement(
            resident=self.resident, prefetch=self.prefetch, preload=on, fill=self.memory if on else 0.0
        )
        return {
            "target": target,
            "draft": Placement(
                run=int(on),
                background=self.provisional == "gaps",
                policy="swap" if self.draft_swaps else "share",
                prefetch=0,
            ),
        }

    def ranks(self, role: str) -> int:
        """See `Method`: the target's first choice, and the draft's `choices` for new branches."""
        return 1 if role == "target" else self.choices

    def look_ahead(self, role: str, answer_length: int) -> int:
        """See `Method`: a full tree, and what is drafted while it is verified."""
        return (self.limit if self.fallback else self.length) + (self.provisional != "never") * self.ahead

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Draft until confidence falls, verify while drafting provisionally, keep matching draft tokens."""
        target, draft = sessions["target"], sessions["draft"]
        draft.engine.turn = None
        decoding = await begin(request, device, target, draft)
        if self.provisional == "gaps":
            draft.engine.turn = partial(wait_for_gap, draft.engine, target.engine)
        alpha, tree = self.alpha, TokenTree(decoding.text)
        with device.phase("decode"):
            while not decoding.done:
                reason = await self._draft(tree, alpha, draft)
                verdict, next_tree = await self._verify(tree, decoding, device, target, draft)
                decoding.verified(verdict, len(tree) - 1, reason)
                alpha = self._adapt(alpha, tree_confidence(tree), verdict.accepted, verdict.reach)
                draft.keep(verdict.text)
                tree = next_tree.below(verdict.text)
        return decoding.generation

    async def _draft(self, tree: TokenTree, alpha: float, draft: Session) -> str:
        """Grow the tree until its cumulative confidence falls below alpha (sec. III-C)."""
        limit = self.limit if self.fallback else self.length
        while len(tree) <= limit:
            if self.fallback and tree_confidence(tree) < alpha:
                return "confidence"
            await self._navigate(tree, draft)
        return "limit"

    async def _verify(
        self, tree: TokenTree, decoding: Decoding, device: Device, target: Session, draft: Session
    ) -> tuple[Verification, TokenTree]:
        """Verify the tree while a copy of it keeps growing (sec. III-D)."""
        verdict = device.spawn(
            target.verify(tree, decoding.chooser, WholeTree(apart=self.verification == "branches"))
        )
        next_tree = tree.below(tree.root)
        if self.provisional != "never":
            while not verdict.done and len(next_tree) < len(tree) + self.ahead:
                await self._navigate(next_tree, draft)
        return await verdict, next_tree

    async def _navigate(self, tree: TokenTree, draft: Session) -> None:
        """Extend the branch that is furthest below its share of the tree by one token (Eqs. 1-2).

        Deviation: the paper's confidences do not sum to one; here a branch's share is its cumulative
        confidence over the sum of all open branches. The paper does not say when a branch opens; here it
        opens once its first token is more probable than the next token of any open branch.
        """
        if len(tree) == 1:
            await draft.forward([tree.root])
        branches = list(self._branches(tree, draft))
        best_branch = max(branches, key=lambda b: b.confidence)
        if not best_branch.opens:
            open_branches = [branch for branch in branches if not branch.opens]
            total, drafted_count = sum(branch.confidence for branch in open_branches), len(tree) - 1
            best_branch = max(open_branches, key=lambda b: drafted_count * b.confidence / total - b.length)
        node = tree.grow(best_branch.parent, best_branch.token, best_branch.logp)
        await draft.forward([tree.prefixes[node]])

    def _branches(self, tree: TokenTree, draft: Session) -> Iterator[Branch]:
        choices = self.choices if self.navigation else 1
        for node in range(len(tree)):
            open_tokens = {tree.token(child) for child in tree.children(node)}
            for rank, (token, logp) in enumerate(draft.logits_of(tree.prefixes[node]).top(choices)):
                if token not in open_tokens:
                    confidence = tree.confidence(node) * math.exp(logp)
                    yield Branch(node, token, logp, confidence, tree.depth(node) + 1, opens=rank > 0)

    def _adapt(self, alpha: float, confidence: float, accepted_count: int, length: int) -> float:
        """Threshold of the next round (Eq. 3); `length` is N_all, that of the branch accepted furthest."""
        if accepted_count == length:
            return alpha * self.shrink
        return min(
            HIGHEST_THRESHOLD, UPDATES[self.update](alpha, confidence, (length - accepted_count) / length)
        )


async def wait_for_gap(draft: Engine, target: Engine, kind: str) -> None:
    """Wait until a draft's op would end before the target goes on, if it takes as long as the last one."""
    while target.gap < draft.took.get(kind, 0.0):
        await target.gap_change


UPDATES: dict[str, Callable[[float, float, float], float]] = {
    "exponential": lambda alpha, confidence, wrong: alpha / confidence**wrong,
    "printed": lambda alpha, confidence, wrong: wrong,
}


def tree_confidence(tree: TokenTree) -> float:
    """T_c: the cumulative confidence of the most confident branch (sec. III-C)."""
    return max(tree.confidence(leaf) for leaf in tree.leaves())


register("method", "edgellm")(EdgeLLM)
