"""What a run computed and what it found in a cache: for time estimates, and for its record.

Owns the sets of results' keys, and the number of decoder layers. Must not know what is computed or where it
is cached; without `counting`, nothing is kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class ResultCount:
    """What was computed within a block of `counting`.

    Attributes:
        computed: keys of the results that were computed.
        found: keys of those found in a cache, perhaps put there before.
        layers: calls of decoder layers, those of draft heads and encoder-decoders included.
    """

    computed: set[Hashable] = field(default_factory=set)
    found: set[Hashable] = field(default_factory=set)
    layers: int = 0

    @property
    def share(self) -> float:
        """The share that was computed, from 0 to 1; 1 if nothing was counted, since no cache was used."""
        every = self.computed | self.found
        return len(self.computed) / len(every) if every else 1.0


_effort: ContextVar[ResultCount | None] = ContextVar("effort", default=None)


@contextmanager
def counting() -> Iterator[ResultCount]:
    """Count what is computed and found within the block."""
    effort = ResultCount()
    token = _effort.set(effort)
    try:
        yield effort
    finally:
        _effort.reset(token)


def count(computed: Iterable[Hashable] = (), found: Iterable[Hashable] = ()) -> None:
    """Add keys to the enclosing `counting`, if there is one."""
    effort = _effort.get()
    if effort is not None:
        effort.computed.update(computed)
        effort.found.update(found)


def count_layers(number: int = 1) -> None:
    """Add calls of decoder layers to the enclosing `counting`, if there is one."""
    effort = _effort.get()
    if effort is not None:
        effort.layers += number


def layers_so_far() -> int | None:
    """Calls of decoder layers in the enclosing `counting`; `None` if there is none."""
    effort = _effort.get()
    return None if effort is None else effort.layers
