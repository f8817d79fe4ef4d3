"""Prompt look-up (transformers' `prompt_lookup_num_tokens`): text drafts, and no second model runs.

Must not know the kind of device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from repro.core.bounds import DraftTokens
from repro.core.registry import register
from repro.device.emulated import Device
from repro.methods.base import Decoding, Generation, Request, Sessions
from repro.methods.speculative.speculative import Speculative, speculate
from repro.models.runtime.placement import Placement
from repro.models.tokens.tree import TokenTree


@register("method", "prompt_lookup")
@dataclass(frozen=True)
class PromptLookup(Speculative):
    """Drafts the tokens that followed the earliest occurrence of the last n-gram in prompt and answer.

    Searching takes no time on an emulated device. What an encoder reads is searched too.

    Attributes:
        ngram: longest n-gram that is searched for; shorter ones follow, down to one token.
        length: most draft tokens per round.
    """

    ngram: DraftTokens = 3
    length: DraftTokens = 10

    def places(self) -> Mapping[str, Placement]:
        """The target in flash, no draft."""
        return {"target": super().places()["target"]}

    def look_ahead(self, role: str, answer_length: int) -> int:
        """See `Method`."""
        return self.length

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Look up and verify until the answer ends."""
        return await speculate(request, device, sessions["target"], [], self.grow)

    async def grow(self, decoding: Decoding, *_: object) -> tuple[TokenTree, str]:
        """A chain of the tokens that are found; only the root if there are none."""
        tree, stop = TokenTree(decoding.text), decoding.generation.request.stop
        for end, token in enumerate(looked_up(decoding.text.tokens(), self.ngram, self.length, stop)):
            tree.grow(end, token)
        return tree, "length" if len(tree) > self.length else "text"


def looked_up(tokens: Sequence[int], ngram: int, length: int, stop: Collection[int]) -> list[int]:
    """At most `length` tokens that followed the earliest occurrence of the longest known n-gram at the end.

    They end before a stop token, which nothing follows; empty if even the last token is new.
    """
    for size in range(min(ngram, len(tokens) - 1), 0, -1):
        last_tokens = tokens[-size:]
        for start in range(len(tokens) - size):
            if tokens[start : start + size] == last_tokens:
                next_tokens = tokens[start + size : start + size + length]
                return [*takewhile(lambda token: token not in stop, next_tokens)]
    return []
