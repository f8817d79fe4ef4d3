"""Features that a draft head reads from its target: hidden states at a few depths, one per sequence.

On real hardware they are captured from the target's own passes (`Captured`). Where a logit cache may have
replaced such passes, they are computed separately (`cached_features.CachedFeatures`). Must not know about
heads or devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from repro.libraries import Tensor, torch
from repro.models.tokens.prefix import Prefix


class Features(Protocol):
    """Hidden states of a target."""

    def start(self) -> None:
        """Start a request: drop the state of the previous one."""

    def of(self, prefixes: Sequence[Prefix]) -> Tensor:
        """Hidden states at each sequence's last token, depths concatenated: fp32 `[n, depths * hidden]`."""

    def keep(self, text: Prefix) -> None:
        """Drop sequences that are neither a prefix nor a continuation of `text`."""


class Captured:
    """Hidden states captured from a decoder's passes; see `Features`.

    Attributes:
        depths: numbers of layers after which hidden states are kept, ascending; depth i is layer i's input.
    """

    def __init__(self, depths: Sequence[int]) -> None:
        self.depths = tuple(depths)
        self._states: dict[int, dict[Prefix, Tensor]] = {depth: {} for depth in depths}

    def __contains__(self, prefix: Prefix) -> bool:
        return all(prefix in states for states in self._states.values())

    def see(self, depth: int, prefixes: Sequence[Prefix], x: Tensor) -> None:
        """Record a pass's hidden states after `depth` layers, `[n, hidden]`."""
        if depth in self._states:
            self._states[depth].update(zip(prefixes, x.unbind(), strict=True))

    def start(self) -> None:
        """See `Features`."""
        for states in self._states.values():
            states.clear()

    def of(self, prefixes: Sequence[Prefix]) -> Tensor:
        """See `Features`; RuntimeError for a sequence the target has not computed."""
        absent = next((prefix for prefix in prefixes if prefix not in self), None)
        if absent is not None:
            raise RuntimeError(f"the target has no features of {absent}: it has not computed it")
        rows = [torch.stack([self._states[depth][prefix] for prefix in prefixes]) for depth in self.depths]
        return torch.cat(rows, dim=-1)

    def keep(self, text: Prefix) -> None:
        """See `Features`."""
        ancestors = set(text.back())
        for states in self._states.values():
            dropped = [p for p in states if p not in ancestors and not p.starts_with(text)]
            for prefix in dropped:
                del states[prefix]
