"""Big Little Decoder (Kim et al., NeurIPS 2023), EdgeLLM's baseline BLD: the draft mostly writes by itself.

Knows nothing of which device runs it. The target is called when the draft is unsure, and lets stand what it
does not find too unlikely, so the text is not the target's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from repro.core.errors import InputError
from repro.core.registry import register
from repro.device.emulated import Device
from repro.methods.base import Decoding, Generation, Request, Sessions
from repro.methods.speculative.speculative import Speculative, begin
from repro.models.forward.chooser import Greedy
from repro.models.forward.network import Logits
from repro.models.runtime.session import Session
from repro.models.tokens.acceptance import AcceptanceWalk, Accepted
from repro.models.tokens.tree import TokenTree


class Lenient(Greedy):
    """Takes a chain of draft tokens up to the first that the target finds too unlikely."""

    def __init__(self, rollback: float) -> None:
        """`rollback` is the largest -log p, in nats, that the target lets stand."""
        self._rollback = rollback

    def walk(self, tree: TokenTree) -> AcceptanceWalk[Logits]:
        """The chain before its first unlikely token and the target's choice there, or all of it.

        As in the release, the whole chain stands if that choice is the unlikely token itself.
        """
        last = len(tree) - 1
        for node in range(last):
            row, token = (yield node), tree.token(node + 1)
            if -logp(row, token) > self._rollback:
                if row.choice == token:
                    break
                return Accepted(list(range(node + 1)), row.choice)
        row = yield last
        return Accepted(list(range(last + 1)), row.choice)


def logp(row: Logits, token: int) -> float:
    """A token's log-probability; beyond the ranks that a row keeps, that of the last, which it cannot exceed.

    Ranks alone are read even where logits are at hand, so that a remembered row gives the same text.
    """
    tokens, logps = row.ranked()
    return logps[tokens.index(token)] if token in tokens else logps[-1]


@register("method", "bld")
@dataclass(frozen=True)
class BigLittle(Speculative):
    """The draft writes until it is unsure; the target takes back what it must and writes one token.

    Defaults are those of the release (github.com/kssteven418/BigLittleDecoder). The points published for
    (rollback, fallback), on an NVIDIA T4: without loss of quality (2, 0.6) for IWSLT2017 and WMT14 de-en and
    (3, 0.4) for CNN/DM; at a point of loss (3, 0.5) for both translations and (6, 0.2) for CNN/DM.

    Deviation: after it took tokens back, the release calls the target once more before the draft goes on.
    Here the correction is the target's one token: a second call would stream the whole target again.

    Attributes:
        fallback: the target is called, and the draft's token dropped, if its probability is below this.
        rollback: -log p of a draft token, in nats, above which the target takes it back with all after it.
        most: draft tokens in a row.
        prefetch: layers that are read ahead; none in EdgeLLM's standard engine.
    """

    lossless: ClassVar[bool] = False

    fallback: float = 0.6
    rollback: float = 5.0
    most: int = 10
    prefetch: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.fallback <= 1:
            raise InputError(f"method.fallback is {self.fallback}; it is a probability from 0 to 1")
        if self.rollback < 0:
            raise InputError(f"method.rollback is {self.rollback}; it is a -log p in nats, 0 or more")
        if self.most < 1:
            raise InputError(f"method.most is {self.most}; the draft needs at least 1 token in a row")

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Draft and call in turn. As in the release, nobody looks at what the draft ends the answer with.

        Raises:
            InputError: the request is sampled.
        """
        target, draft = sessions["target"], sessions["draft"]
        if not request.sampling.greedy:
            raise InputError(
                f"sampling.temperature is {request.sampling.temperature}; bld decodes greedily alone, at 0"
            )
        decoding, lenient = await begin(request, device, target, draft), Lenient(self.rollback)
        with device.phase("decode"):
            while not decoding.done:
                tree, reason = await self.grow(decoding, draft)
                drafted = len(tree) - 1
                if reason == "end":
                    decoding.round(tree.prefixes[-1], drafted, rows=0, accepted=drafted, reason=reason)
                    break
                verification = await target.verify(tree, lenient)
                decoding.round(
                    verification.text, drafted, verification.rows, len(verification.path) - 1, reason
                )
                draft.keep(verification.text)
        return decoding.generation

    async def grow(self, decoding: Decoding, draft: Session) -> tuple[TokenTree, str]:
        """The draft's choices until it is unsure, has had its turn, or ends the answer."""
        tree, stop = TokenTree(decoding.text), decoding.generation.request.stop
        for end in range(self.most):
            (row,) = await draft.forward([tree.prefixes[end]])
            token, confidence, _ = decoding.chooser.propose(row)
            if math.exp(confidence) < self.fallback:
                return tree, "confidence"
            tree.grow(end, token, confidence)
            if token in stop or len(tree) > decoding.remaining:
                return tree, "end"
        return tree, "length"
