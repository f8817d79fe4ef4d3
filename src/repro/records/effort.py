"""Which results a run computed and which it found in a cache, for time estimates.

Owns the sets of their keys. Must not know what is computed or where it is cached; without `counting`, nothing
is kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class ResultCount:
    """The keys of the results that were computed, and of those found in a cache, perhaps put there before."""

    computed: set[Hashable] = field(default_factory=set)
    found: set[Hashable] = field(default_factory=set)

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
