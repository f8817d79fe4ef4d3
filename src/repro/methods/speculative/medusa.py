"""Medusa (Cai et al., ICML 2024) as Ghidorah's baseline: heads of the target draft a tree of fixed shape, and
the target verifies it in one pass, in memory and on one processor.

Must not know the kind of device or how a tree's shape was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Interval

from repro.core.errors import InputError
from repro.core.registry import register
from repro.device.emulated import Device
from repro.methods.base import Decoding, Generation, Method, Request, Serving, Sessions
from repro.methods.speculative.drafting.head_ranks import Calibration
from repro.methods.speculative.drafting.verification_tree import VerificationTree, search_tree
from repro.methods.speculative.speculative import speculate
from repro.models.forward.network import Logits
from repro.models.runtime.placement import RESIDENT, Placement
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from repro.models.tokens.tree import TokenTree
from repro.records.record import Scalar

WIDTHS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Medusa(Method):
    """Drafts with all heads in one pass, then verifies.

    Sampled requests also draft top-ranked candidates instead of sampling them.

    Attributes:
        width: verification width, root included. The tree of that width is Ghidorah's (sec. IV-A), from the
            heads' calibration.
    """

    companion: ClassVar[str] = "medusa"
    version: ClassVar[int] = 1  # before, the draft's pass over the prompt was decoding

    width: Annotated[int, Interval(ge=1, le=64)] = 64

    def places(self) -> Mapping[str, Placement]:
        """Target and heads in memory."""
        return {"target": RESIDENT, "draft": RESIDENT}

    async def prepare(self, device: Device, sessions: Sessions) -> Serving:
        """Search the tree of the width."""
        target, draft = sessions["target"], sessions["draft"]
        target.engine.arrange(None)
        draft.engine.arrange(None)
        return TreeDecoding(search_tree(calibration(draft), self.width))

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Prepare, and answer one request."""
        target, draft = sessions["target"], sessions["draft"]
        serving = await self.prepare(device, sessions)
        for session in (target, draft):
            session.start(request.prefix)
        return await serving.serve(request, device, sessions)


@dataclass(frozen=True)
class TreeDecoding(Serving):
    """Medusa decoding with a fixed tree of ranks."""

    tree: VerificationTree

    @property
    def figures(self) -> Mapping[str, Scalar]:
        """The tree as text."""
        return {"tree": str(self.tree)}

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Draft and verify until the answer ends."""
        target, draft = sessions["target"], sessions["draft"]

        async def grow(decoding: Decoding) -> tuple[TokenTree, str]:
            return await draft_tree(self.tree, decoding.text, draft), "width"

        return await speculate(request, device, target, [draft], grow)


def calibration(draft: Session) -> Calibration:
    """Calibration of a draft's heads; InputError without Medusa heads or recorded ranks."""
    if not isinstance(draft.beside, Calibration):
        unranked = "heads without recorded ranks (workshop.training.head_ranks)"
        reason = unranked if draft.heads else "no Medusa heads"
        raise InputError(f"{draft.name} has {reason}; choose model@draft=smollm2_135m_medusa or record them")
    return draft.beside


async def draft_tree(shape: VerificationTree, text: Prefix, draft: Session) -> TokenTree:
    """Draft a token tree: each node is the token at its rank in the logits of its level's head.

    A head's logits do not depend on the draft tokens before, so one prefix per level is computed.
    """
    prefixes = [text]
    while len(prefixes) < shape.height:
        prefixes.append(prefixes[-1].then(0))
    rows: list[Logits] = await draft.forward(prefixes[: shape.height])
    tree, nodes = TokenTree(text), [0]
    for path, parent in zip(shape.paths, shape.parents[1:], strict=True):
        token, logp = rows[len(path) - 1].top(path[-1] + 1)[path[-1]]
        nodes.append(tree.grow(nodes[parent], token, logp))
    return tree


register("method", "medusa")(Medusa)
