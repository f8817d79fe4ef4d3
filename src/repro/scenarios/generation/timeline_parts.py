"""What the ops of a run belong to, for its timeline: requests, rounds and forward passes.

Must not know how a timeline is written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from math import inf

from repro.device.timeline import Level, TimelinePart
from repro.device.trace import Trace
from repro.methods.base import Generation
from repro.models.runtime.session import Session

MOST_OPS = 60_000
"""Ops of a timeline, unless its first request alone has more: a viewer and a disk hold so many with ease."""


def shown_until(generations: Sequence[Generation], trace: Trace, most: int = MOST_OPS) -> tuple[float, int]:
    """When a timeline ends, and how many requests it shows: as many as `most` ops allow, at least one."""
    starts = sorted(span.start for span in trace)
    for count, g in enumerate(generations[1:], 1):
        if bisect_left(starts, g.ended) > most:
            return generations[count - 1].ended, count
    return inf, len(generations)


def timeline_parts(
    generations: Sequence[Generation], sessions: Mapping[str, Session]
) -> Iterator[TimelinePart]:
    """Requests with their rounds, then the passes of each model, those of the preparation included."""
    for g in generations:
        args: dict[str, object] = {"prompt_tokens": len(g.request.prompt), "tokens": len(g.tokens)}
        yield TimelinePart(Level.REQUEST, f"request {g.request.id}", g.arrived, g.ended, args)
        for i, r in enumerate(g.rounds):
            told: dict[str, object] = {
                "drafted": r.drafted,
                "accepted": r.accepted,
                "emitted": r.emitted,
                "rows": r.rows,
            }
            if r.reason:
                told["stopped"] = r.reason
            yield TimelinePart(Level.ROUND, f"round {i}", r.start, r.end, told)
    for role, session in sessions.items():
        for p in session.passes:
            args = {"rows": p.rows, "loading_ms": round(p.loading * 1e3, 3)}
            yield TimelinePart(Level.PASS, f"{role} pass", p.start, p.end, args, role)
