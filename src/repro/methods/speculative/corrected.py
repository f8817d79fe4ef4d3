"""The target's greedy answer token by token, with the draft's prediction at each (EdgeLLM Table I)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from repro.core.bounds import Layers, Share
from repro.core.registry import register
from repro.device.emulated import Device
from repro.methods.base import Generation, Method, Request, Sessions
from repro.methods.speculative.speculative import begin
from repro.models.runtime.placement import RESIDENT, Placement


@register("method", "corrected")
@dataclass(frozen=True)
class Corrected(Method):
    """Draft with a target-corrected prefix: each draft token is replaced by the target's.

    Measures how often the draft is correct after a correct prefix (EdgeLLM sec. II-C), without speedup. A
    round drafts one token and emits the target's; the first token, from the prefill, is not drafted.

    Attributes:
        resident: share of the target's layers in memory; the rest is streamed in each pass.
        prefetch: layers that are read ahead.
    """

    version: ClassVar[int] = 1  # before, the draft's pass over the prompt was decoding
    round_metric: ClassVar[str] = "draft_correctness"

    resident: Share = 0.0
    prefetch: Layers = 1

    def ranks(self, role: str) -> int:
        """See `Method`: first choices alone."""
        return 1

    def places(self) -> Mapping[str, Placement]:
        """The target in flash, the draft in memory."""
        return {"target": Placement(resident=self.resident, prefetch=self.prefetch), "draft": RESIDENT}

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Per round, one draft token and one target token."""
        target, draft = sessions["target"], sessions["draft"]
        decoding = await begin(request, device, target, draft)
        with device.phase("decode"):
            while not decoding.done:
                (guess,) = await draft.forward([decoding.text])
                (row,) = await target.forward([decoding.text])
                token = decoding.chooser.first(row)
                is_right = decoding.chooser.propose(guess).token == token
                text = decoding.text.then(token)
                for session in (target, draft):
                    session.keep(text)
                decoding.round(text, drafted_count=1, accepted_count=int(is_right))
        return decoding.generation
