"""Big Little Decoder (Kim et al., NeurIPS 2023), EdgeLLM's baseline BLD: lossy speculative decoding.

Must not know the kind of device. The target runs when the draft's confidence is low or its chain is full, and
accepts draft tokens that it does not find too unlikely, so the answer is not the target's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Interval

from repro.core.bounds import DraftTokens, Layers, Share
from repro.core.errors import InputError
from repro.core.registry import register
from repro.device.emulated import Device
from repro.methods.base import Decoding, Generation, Request, Sessions
from repro.methods.speculative.speculative import Speculative, begin
from repro.models.forward.chooser import Greedy
from repro.models.forward.network import RANK_COUNT, Logits
from repro.models.runtime.session import Session
from repro.models.tokens.acceptance import AcceptanceWalk, Accepted
from repro.models.tokens.sampling import Sampling
from repro.models.tokens.tree import TokenTree


class Lenient(Greedy):
    """Accepts a chain of draft tokens before the first that the target finds too unlikely."""

    def __init__(self, rollback: float) -> None:
        """`rollback` is the largest accepted -log p, in nats."""
        self._rollback = rollback

    def walk(self, tree: TokenTree) -> AcceptanceWalk[Logits]:
        """Accept the chain before its first unlikely token and the target's choice there, or the whole chain.

        As in the release, the whole chain is accepted if that choice is the unlikely token itself.
        """
        last_node = len(tree) - 1
        for node in range(last_node):
            row, token = (yield node), tree.token(node + 1)
            if -logp(row, token) > self._rollback:
                if row.choice == token:
                    break
                return Accepted(list(range(node + 1)), row.choice)
        row = yield last_node
        return Accepted(list(range(last_node + 1)), row.choice)


def logp(row: Logits, token: int) -> float:
    """Log-probability of a token; beyond the stored ranks, that of the last rank, which is an upper bound.

    Uses only the ranks even if logits are available, so that cached ranks give the same answer.
    """
    tokens, logps = row.top_ranks()
    return logps[tokens.index(token)] if token in tokens else logps[-1]


@register("method", "bld")
@dataclass(frozen=True)
class BigLittle(Speculative):
    """The draft decodes until its confidence is low; the target rolls back unlikely tokens and adds one.

    Defaults are those of the release (github.com/kssteven418/BigLittleDecoder). The points published for
    (rollback, fallback), on an NVIDIA T4: without loss of quality (2, 0.6) for IWSLT2017 and WMT14 de-en and
    (3, 0.4) for CNN/DM; with one point of loss (3, 0.5) for both translations and (6, 0.2) for CNN/DM.

    Deviation: after a rollback, the release runs the target once more before drafting continues. Here the
    target's token at the rollback is used, since a second pass would stream the whole target again.

    Attributes:
        fallback: probability below which a draft token is dropped and the target is called.
        rollback: -log p in nats above which the target rolls back a draft token and all after it.
        most: maximum draft tokens per round.
        prefetch: layers that are read ahead; none in EdgeLLM's standard engine.
    """

    lossless: ClassVar[bool] = False

    fallback: Share = 0.6
    rollback: Annotated[float, Interval(ge=0, le=1e4)] = 5.0
    most: DraftTokens = 10
    prefetch: Layers = 0

    def check(self, sampling: Sampling) -> None:
        """InputError for sampled answers: which tokens are accepted does not depend on a draw."""
        if not sampling.greedy:
            raise InputError(
                f"sampling.temperature is {sampling.temperature}; bld decodes greedily alone, at 0"
            )

    def ranks(self, role: str) -> int:
        """See `Method`: the target judges tokens of any rank."""
        return RANK_COUNT if role == "target" else 1

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Draft and verify in turn; as in the release, draft tokens that end the answer are not verified.

        Raises:
            InputError: the request is sampled.
        """
        target, draft = sessions["target"], sessions["draft"]
        self.check(request.sampling)
        decoding, lenient = await begin(request, device, target, draft), Lenient(self.rollback)
        with device.phase("decode"):
            while not decoding.done:
                tree, reason = await self.grow(decoding, draft)
                length = len(tree) - 1
                if reason == "end":
                    decoding.round(
                        tree.prefixes[-1], length, row_count=0, accepted_count=length, reason=reason
                    )
                    break
                verification = await target.verify(tree, lenient)
                decoding.round(verification.text, length, verification.rows, verification.accepted, reason)
                draft.keep(verification.text)
        return decoding.generation

    async def grow(self, decoding: Decoding, draft: Session) -> tuple[TokenTree, str]:
        """Draft until confidence is low, `most` tokens are drafted, or the answer ends."""
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
