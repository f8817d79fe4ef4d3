"""A target's hidden states for draft heads, from a second decoder or a cache on disk.

Used where the target's own passes may have been skipped by a logit cache. Must not know about heads. Nothing
here is billed: on a device the target's billed passes produce these features as a by-product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from repro.libraries import Tensor, torch
from repro.models.forward.features import Captured
from repro.models.forward.logit_cache import LogitCache
from repro.models.forward.network import DecoderNetwork
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.decoder import Decoder


class CachedFeatures:
    """Features from a cache kept across runs, or else from a separate decoder; see `Features`."""

    def __init__(self, depths: Sequence[int], make: Callable[[], Decoder], memo: LogitCache | None) -> None:
        """`make` loads the target on first use; without a memo all features are computed."""
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
        asked = list(dict.fromkeys(prefixes))
        missing = [prefix for prefix in asked if prefix not in self._captured]
        if missing:
            self._made.begin(missing).layers(0, self._made.depth)
        if self._memo is not None:
            for depth in depths:
                self._memo.put_hidden(asked, depth, self._captured.after(depth, asked))
        return self._captured.of(prefixes)


def lowest(decoder: Decoder, layers: int) -> Decoder:
    """A decoder made of the first `layers` layers of another one; shares its weights."""
    return Decoder(replace(decoder.config, layers=layers), decoder.layers[:layers], decoder.ends)
