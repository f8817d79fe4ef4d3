"""Verification of a known answer in one pass, as timed in EdgeLLM's Figs. 5 and 11."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from repro.core.bounds import DraftTokens, Layers
from repro.core.errors import InputError
from repro.core.registry import register
from repro.device.emulated import Device
from repro.methods.base import Decoding, Generation, Method, Request, Sessions
from repro.models.runtime.placement import Placement
from repro.models.runtime.session import WholeTree
from repro.models.tokens.sampling import Sampling
from repro.models.tokens.tree import TokenTree


@register("method", "nav")
@dataclass(frozen=True)
class Nav(Method):
    """Non-autoregressive verification (sec. II-C) of the target's own answer, decoded beforehand.

    Decode is one pass over all tokens but the last, which that pass gives. Autoregressive baselines take one
    pass per token.

    Attributes:
        batch: sequences in the mini-batch: the answer, and wrong ones of equal length.
        prefetch: layers that are read ahead; none in EdgeLLM's standard engine.
    """

    batch: DraftTokens = 1
    prefetch: Layers = 0

    def check(self, sampling: Sampling) -> None:
        """InputError for a sampled answer, which is not known beforehand."""
        if not sampling.greedy:
            raise InputError(f"sampling.temperature is {sampling.temperature}; nav is greedy, at 0")

    def places(self) -> Mapping[str, Placement]:
        """The target in flash."""
        return {"target": Placement(resident=0.0, prefetch=self.prefetch)}

    def look_ahead(self, role: str, answer_length: int) -> int:
        """See `Method`: the wrong sequences; the answer's own last token is not computed."""
        return (self.batch - 1) * max(0, answer_length - 2)

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Decode the answer in a rehearsal, reset the session, then verify the answer.

        Raises:
            InputError: the request is sampled.
        """
        target = sessions["target"]
        self.check(request.sampling)
        with device.phase("rehearsal"):
            rehearsal = Decoding(request, device)
            (row,) = await target.forward([rehearsal.text])
            rehearsal.first(row.choice)
            while not rehearsal.done:
                (row,) = await target.forward([rehearsal.text])
                rehearsal.round(rehearsal.text.then(row.choice))
        target.start(request.prefix)
        decoding = Decoding(request, device)
        with device.phase("prefill"):
            (row,) = await target.forward([decoding.text])
            decoding.first(row.choice)
        with device.phase("decode"):
            while not decoding.done:
                tree = self._tree(decoding, rehearsal.generation.tokens)
                verification = await target.verify(tree, decoding.chooser, WholeTree(apart=self.batch > 1))
                decoding.verified(verification, len(tree) - 1, "known")
        return decoding.generation

    def _tree(self, decoding: Decoding, answer: list[int]) -> TokenTree:
        """Tree of the remaining answer without its last token, and wrong branches for the batch."""
        tokens = answer[len(decoding.generation.tokens) : -1]
        tree = TokenTree(decoding.text)
        for branch in range(self.batch if tokens else 1):
            node = 0
            for token in tokens:
                node = tree.grow(node, token - branch if token >= branch else token + branch)
        return tree
