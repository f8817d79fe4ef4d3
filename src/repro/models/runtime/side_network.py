"""A small network that a method opens beside a model, and that reads the model's hidden states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self, runtime_checkable

from repro.models.forward.logit_cache import LogitCache


@runtime_checkable
class SideNetwork(Protocol):
    """What caches and keys need of such a network; its method knows the rest.

    Attributes:
        kind: what it is, in a word.
        digest: content hash of its files.
        variant: names its outputs among those of the model (`Model.memo`).
    """

    kind: str
    digest: str

    @property
    def variant(self) -> str:
        """See the class."""

    def remember(self, memo: LogitCache) -> None:
        """Look outputs up in a cache from now on, and store new ones in it."""

    def compare(self, memo: LogitCache, judge: Callable[[int, float], None]) -> Self:
        """The network computing anew, its outputs compared with those of a cache, where there are any.

        Args:
            memo: the cache.
            judge: is told the tokens before an output, and by how much it differs.
        """
