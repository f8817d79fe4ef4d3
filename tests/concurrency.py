"""How many spans of a trace run at once."""

from __future__ import annotations

from collections.abc import Iterable

from repro.device.trace import Span


def most_at_once(spans: Iterable[Span]) -> int:
    """The largest number of concurrent spans; spans that only touch do not overlap."""
    edges = sorted(edge for s in spans if s.seconds > 0 for edge in ((s.start, 1), (s.end, -1)))
    level = highest = 0
    for _, step in sorted(edges, key=lambda e: (e[0], e[1])):
        level += step
        highest = max(highest, level)
    return highest
