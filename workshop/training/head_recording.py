"""Records the ranks that Medusa heads give the target's tokens along its own answer.

Must not know trees or how ranks are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.device.emulated import Device
from repro.methods.base import Request
from repro.methods.speculative.speculative import begin
from repro.models.drafting.head_ranks import answer_ranks
from repro.models.forward.network import Logits
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix

if TYPE_CHECKING:
    from torch import Tensor


async def recorded(request: Request, device: Device, target: Session, draft: Session) -> Tensor:
    """Decode with the target and run all heads at each token but the last: a part of `HeadRanks.ranks`."""
    decoding = await begin(request, device, target, draft)
    said: list[list[Logits]] = []
    with device.phase("decode"):
        while not decoding.done:
            said.append(await draft.forward(levels(decoding.text, draft.heads)))
            (row,) = await target.forward([decoding.text])
            text = decoding.text.then(decoding.chooser.first(row))
            for session in (target, draft):
                session.keep(text)
            decoding.round(text)
    return answer_ranks(decoding.generation.tokens, said)


def levels(text: Prefix, heads: int) -> list[Prefix]:
    """One prefix per head after a text; filler tokens stand in, since heads do not read draft tokens."""
    out = [text]
    while len(out) < heads:
        out.append(out[-1].then(0))
    return out[:heads]
