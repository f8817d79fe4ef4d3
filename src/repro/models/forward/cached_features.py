"""A target's hidden states for draft heads, from a second decoder or a cache on disk.

Used where the target's own passes may have been skipped by a logit cache. Must not know about heads. Nothing
here is billed: on a device the target's billed passes produce these features as a by-product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from repro.libraries import Tensor
from repro.models.forward.logit_cache import LogitCache
from repro.models.forward.network import Captured, DecoderNetwork, LateNetwork
from repro.models.tokens.prefix import Prefix
from repro.models.transformer.decoder import Decoder


class CachedFeatures:
    """Features from a cache kept across runs, or else from a separate decoder; see `Features`."""

    def __init__(
        self, depths: Sequence[int], load_decoder: Callable[[], Decoder], memo: LogitCache | None = None
    ) -> None:
        """`load_decoder` loads the target on first use; without a head's memo all features are computed."""
        self._captured = Captured(depths)
        self._memo = memo
        depth = max(depths)
        self._network = LateNetwork(
            depth, lambda: DecoderNetwork(lowest(load_decoder(), depth), captured=self._captured)
        )

    def start(self) -> None:
        """See `Features`."""
        self._network.start(Prefix.empty())

    def of(self, prefixes: Sequence[Prefix]) -> Tensor:
        """See `Features`."""
        stored_features = self._memo.features(prefixes) if self._memo else None
        if stored_features is not None:
            return stored_features
        if misses := [prefix for prefix in dict.fromkeys(prefixes) if prefix not in self._captured]:
            self._network.begin(misses).layers(0, self._network.depth)
        features = self._captured.of(prefixes)
        if self._memo:
            self._memo.put_features(prefixes, features)
        return features

    def keep(self, text: Prefix) -> None:
        """See `Features`."""
        self._network.keep(text)


def lowest(decoder: Decoder, layer_count: int) -> Decoder:
    """A decoder made of the first `layer_count` layers of another one; shares its weights."""
    return decoder.with_layers(
        decoder.layers[:layer_count], config=replace(decoder.config, layers=layer_count)
    )
