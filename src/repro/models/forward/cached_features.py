"""A target's features where its own passes may not have computed them: by a decoder apart, or from a memo.

Knows nothing of heads, and nothing here is billed: the target that a device is billed for has them for free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from repro.core.late import late
from repro.models.forward.features import Captured
from repro.models.forward.logit_cache import LogitCache
from repro.models.forward.network import DecoderNetwork
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.decoder import Decoder

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")


class CachedFeatures:
    """Features that a memo keeps across runs, or that a decoder of their own computes; see `Features`."""

    def __init__(self, depths: Sequence[int], make: Callable[[], Decoder], memo: LogitCache | None) -> None:
        """`make` loads the target when it is first needed; without a memo all is computed."""
        self._captured = Captured(depths)
        self._make = make
        self._memo = memo
        self._made: DecoderNetwork | None = None

    def start(self) -> None:
        """See `Features`."""
        if self._made is not None:
            self._made.start(Prefix.empty())

    def of(self, prefixes: Sequence[Prefix]) -> Tensor:
        """See `Features`."""
        depths = self._captured.depths
        if self._memo is not None:
            known = {depth: self._memo.hidden(prefixes, depth) for depth in set(depths)}
            rows = [row for depth in depths if (row := known[depth]) is not None]
            if len(rows) == len(depths):
                return torch.cat(rows, dim=-1)
        return self._computed(prefixes)

    def keep(self, text: Prefix) -> None:
        """See `Features`."""
        if self._made is not None:
            self._made.keep(text)

    def _computed(self, prefixes: Sequence[Prefix]) -> Tensor:
        depths = set(self._captured.depths)
        if self._made is None:
            self._made = DecoderNetwork(lowest(self._make(), max(depths)), captured=self._captured)
        missing = [prefix for prefix in prefixes if prefix not in self._captured]
        if missing:
            self._made.begin(missing).layers(0, self._made.depth)
        found = self._captured.of(prefixes)
        if self._memo is not None:
            for depth in depths:
                self._memo.put_hidden(prefixes, depth, self._captured.after(depth, prefixes))
        return found


def lowest(decoder: Decoder, layers: int) -> Decoder:
    """A decoder of the first layers of another one, whose weights it shares."""
    return Decoder(replace(decoder.config, layers=layers), decoder.layers[:layers], decoder.ends)
