"""Measures passes over trees of a given shape before the first request, with arbitrary tokens.

Must not know the kind of device or how measurements are used.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from statistics import median
from typing import Any

from repro.device.emulated import Device
from repro.methods.ghidorah.division import attend, divide
from repro.methods.ghidorah.partition import AttentionExtent, Split
from repro.methods.speculative.drafting.verification_tree import VerificationTree
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix

CONTEXT_LENGTH = 256
"""Context length of measured verifications (Ghidorah sec. IV-C)."""

REPEATS = 3
"""Repetitions of a measurement; the median is used."""

CONTEXT_TEXT = Prefix.of((0,) * CONTEXT_LENGTH)


@dataclass(frozen=True)
class Rehearsal:
    """Measures one tree shape with one pair of models."""

    device: Device
    target: Session
    draft: Session
    tree: VerificationTree

    async def verification(self, split: Split | None = None, on: str = "") -> float:
        """Seconds of a verification, optionally divided, or on another processor than the target's."""
        root = CONTEXT_TEXT.then(0)
        nodes = [root]
        for path, parent in zip(self.tree.paths, self.tree.parents[1:], strict=True):
            nodes.append(nodes[parent].then(path[-1]))
        seconds = []
        for _ in range(REPEATS):
            await self._begin()
            divide(self.target, split)
            seconds.append(await self._seconds_of(self.target.forward(nodes, on=on)))
        return median(seconds)

    async def drafting(self, split: Split | None = None) -> float:
        """Seconds of a draft pass of all heads that the tree uses."""
        prefixes = [CONTEXT_TEXT.then(0)]
        while len(prefixes) < self.tree.height:
            prefixes.append(prefixes[-1].then(0))
        seconds = []
        for _ in range(REPEATS):
            await self._begin()
            divide(self.draft, split)
            seconds.append(await self._seconds_of(self.draft.forward(prefixes)))
        return median(seconds)

    async def attention(self, split: Split, context_length: int) -> float:
        """Seconds of one layer's attention with `context_length` cached tokens."""
        depths = [0]
        for parent in self.tree.parents[1:]:
            depths.append(depths[parent] + 1)
        divide(self.target, split)
        return await self._seconds_of(
            attend(
                self.target, AttentionExtent(self.tree.width, context_length, [depth + 1 for depth in depths])
            )
        )

    async def _begin(self) -> None:
        for session in (self.target, self.draft):
            divide(session, None)
            session.start(CONTEXT_TEXT)
        await self.target.forward([CONTEXT_TEXT])
        self.target.keep(CONTEXT_TEXT)

    async def _seconds_of(self, work: Awaitable[Any]) -> float:
        start = self.device.now
        await work
        return self.device.now - start
