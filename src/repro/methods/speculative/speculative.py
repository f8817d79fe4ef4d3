"""The speculative decoding loop: draft a tree, verify it in one pass of the target, repeat."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from repro.core.bounds import Layers, Share
from repro.device.emulated import Device
from repro.methods.base import Decoding, Generation, Method, Request, Sessions
from repro.models.forward.network import RANK_COUNT
from repro.models.runtime.placement import RESIDENT, Placement
from repro.models.runtime.session import Session
from repro.models.tokens.tree import TokenTree


@dataclass(frozen=True)
class Speculative(Method):
    """Base class that drafts and verifies in turn; subclasses define the draft tree.

    Attributes:
        resident: share of the target's layers in memory; the rest is streamed in each verification.
        prefetch: layers that are read ahead.
    """

    version: ClassVar[int] = 1  # before, the draft's pass over the prompt was decoding

    resident: Share = 0.0
    prefetch: Layers = 1

    def places(self) -> Mapping[str, Placement]:
        """The target in flash, the draft in memory."""
        return {"target": Placement(resident=self.resident, prefetch=self.prefetch), "draft": RESIDENT}

    def ranks(self, role: str) -> int:
        """See `Method`: first choices of the target, `draft_ranks` of a draft."""
        return 1 if role == "target" else self.draft_ranks

    @property
    def draft_ranks(self) -> int:
        """How many of a draft's first ranks `grow` reads after one sequence."""
        return RANK_COUNT

    @abstractmethod
    async def grow(self, decoding: Decoding, draft: Session) -> tuple[TokenTree, str]:
        """Draft a tree after the current text; returns it and why it stopped growing."""

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Draft and verify until the answer ends."""
        target, draft = sessions["target"], sessions["draft"]
        return await speculate(request, device, target, [draft], lambda decoding: self.grow(decoding, draft))


async def speculate(
    request: Request,
    device: Device,
    target: Session,
    drafts: Sequence[Session],
    grow: Callable[[Decoding], Awaitable[tuple[TokenTree, str]]],
) -> Generation:
    """Draft a tree with `grow` and verify it, until the answer ends."""
    decoding = await begin(request, device, target, *drafts)
    with device.phase("decode"):
        while not decoding.done:
            tree, reason = await grow(decoding)
            verification = await target.verify(tree, decoding.chooser)
            decoding.verified(verification, len(tree) - 1, reason)
            for draft in drafts:
                draft.keep(verification.text)
    return decoding.generation


async def begin(request: Request, device: Device, target: Session, *drafts: Session) -> Decoding:
    """Prefill all models; the target's prefill gives the first token, decoding starts after the drafts'.

    Where the engine says so (`draft_prompt: earliest`), a draft reads the prompt on the processor on which it
    is done first, beside the target if that is another one. Heads wait: they read the target's features.
    """
    decoding = Decoding(request, device)
    with device.phase("prefill"):
        processors = [_prompt_processor(draft, target, request) for draft in drafts]
        on_target = target.engine.processor_of(_rows(request))
        early = {i: on for i, on in enumerate(processors) if on not in ("", on_target)}
        passes = {i: device.spawn(drafts[i].forward([decoding.text], on=on)) for i, on in early.items()}
        (row,) = await target.forward([decoding.text])
        decoding.first(decoding.chooser.first(row))
        for prompt_length in passes.values():
            await prompt_length
        if not decoding.done:
            target.keep(decoding.text)
            for i, draft in enumerate(drafts):
                await draft.forward([decoding.text], on="" if i in passes else processors[i])
            decoding.end_prefill()
    return decoding


def _prompt_processor(draft: Session, target: Session, request: Request) -> str:
    """The processor on which a draft reads the prompt; "" for that of its placement, after the target."""
    if not draft.device.early_drafts or draft.reads_target or request.max_tokens == 1:
        return ""
    return draft.engine.prompt_processor(_rows(request), target.engine)


def _rows(request: Request) -> int:
    return request.prefix.length
