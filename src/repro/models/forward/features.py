"""What a draft head reads of its target: the hidden rows at a few depths, at the end of given sequences.

Knows nothing of heads or of devices. On a real device the target's own passes leave them behind (`Captured`);
where a memo may have answered for the target, they are computed apart (`cached_features.CachedFeatures`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from repro.core.late import late
from repro.models.tokens.prefix import Prefix

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = late("torch")


class Features(Protocol):
    """Hidden rows of a target."""

    def start(self) -> None:
        """A new request: forget all of the one before."""

    def of(self, prefixes: Sequence[Prefix]) -> Tensor:
        """The rows at each sequence's last token, low to high side by side: fp32 `[n, depths * hidden]`."""

    def keep(self, text: Prefix) -> None:
        """Forget what neither leads to `text` nor goes on from it."""


class Captured:
    """What a decoder's passes leave behind; see `Features`.

    Attributes:
        depths: after how many layers rows are kept, low to high. After i layers is the input of layer i.
    """

    def __init__(self, depths: Sequence[int]) -> None:
        self.depths = tuple(depths)
        self._held: dict[int, dict[Prefix, Tensor]] = {depth: {} for depth in depths}

    def __contains__(self, prefix: Prefix) -> bool:
        return all(prefix in held for held in self._held.values())

    def see(self, depth: int, prefixes: Sequence[Prefix], x: Tensor) -> None:
        """A pass has come through `depth` layers with these rows, `[n, hidden]`."""
        if depth in self._held:
            self._held[depth].update(zip(prefixes, x.unbind(), strict=True))

    def start(self) -> None:
        """See `Features`."""
        for held in self._held.values():
            held.clear()

    def of(self, prefixes: Sequence[Prefix]) -> Tensor:
        """See `Features`; RuntimeError for a sequence that the target has not computed."""
        absent = next((prefix for prefix in prefixes if prefix not in self), None)
        if absent is not None:
            raise RuntimeError(f"the target has no features of {absent}: it has not computed it")
        return torch.cat([self.after(depth, prefixes) for depth in self.depths], dim=-1)

    def after(self, depth: int, prefixes: Sequence[Prefix]) -> Tensor:
        """Their rows at one depth, `[n, hidden]`."""
        return torch.stack([self._held[depth][prefix] for prefix in prefixes])

    def keep(self, text: Prefix) -> None:
        """See `Features`."""
        line = set(text.back())
        for held in self._held.values():
            gone = [p for p in held if p not in line and not p.starts_with(text)]
            for prefix in gone:
                del held[prefix]
