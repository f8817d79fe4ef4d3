"""A target's hidden states for draft heads, from a second decoder or a cache on disk.

Used where the target's own passes may have been skipped by a logit cache. Must not know about heads. Nothing
here is billed: on a device the target's billed passes produce these features as a by-product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from repro.libraries import Tensor
from repro.models.forward.features import Captured
from repro.models.forward.logit_cache import LogitCache
from repro.models.forward.network import DecoderNetwork
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.decoder import Decoder


class CachedFeatures:
    """Features from a cache kept across runs, or else from a separate decoder; see `Features`."""

    def __init__(
        self, depths: Sequence[int], make: Callable[[], Decoder], memo: LogitCache | None = None
    ) -> None:
        """`make` loads the target on first use; without the memo of a head all features are computed."""
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
        known = self._memo.features(prefixes) if self._memo else None
        if known is None:
            known = self._computed(prefixes)
            if self._memo:
                self._memo.put_features(prefixes, known)
        return known

    def keep(self, text: Prefix) -> None:
        """See `Features`."""
        if self._made is not None:
            self._made.keep(text)

    def _computed(self, prefixes: Sequence[Prefix]) -> Tensor:
        if self._made is None:
            decoder = lowest(self._make(), max(self._captured.depths))
            self._made = DecoderNetwork(decoder, captured=self._captured)
        if missing := [prefix for prefix in dict.fromkeys(prefixes) if prefix not in self._captured]:
            self._made.begin(missing).layers(0, self._made.depth)
        return self._captured.of(prefixes)


def lowest(decoder: Decoder, layers: int) -> Decoder:
    """A decoder made of the first `layers` layers of another one; shares its weights."""
    return decoder.with_layers(decoder.layers[:layers], config=replace(decoder.config, layers=layers))
