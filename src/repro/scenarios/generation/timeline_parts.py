"""What the ops of a run belong to, for its timeline: requests, rounds and forward passes.

Must not know how a timeline is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from repro.device.timeline import Level, TimelinePart
from repro.device.trace import Phase
from repro.methods.base import Generation
from repro.models.runtime.session import Session


def timeline_parts(
    generations: Sequence[Generation], sessions: Mapping[str, Session], phases: Sequence[Phase]
) -> Iterator[TimelinePart]:
    """Requests with their rounds, then the passes of each model, those of the preparation included.

    The first round counts from the first token, while drafts may still read the prompt; its slice begins
    after the prefill.
    """
    prefills = [phase for phase in phases if phase.name == "prefill"]
    for g in generations:
        args: dict[str, object] = {"prompt_tokens": len(g.request.prompt), "tokens": len(g.tokens)}
        yield TimelinePart(Level.REQUEST, f"request {g.request.id}", g.arrived, g.ended, args)
        for i, r in enumerate(g.rounds):
            start = max((p.end for p in prefills if p.start <= r.start < p.end < r.end), default=r.start)
            told: dict[str, object] = {
                "drafted": r.drafted,
                "accepted": r.accepted,
                "emitted": r.emitted,
                "rows": r.rows,
            }
            if r.reason:
                told["stopped"] = r.reason
            yield TimelinePart(Level.ROUND, f"round {i}", start, r.end, told)
    for role, session in sessions.items():
        for p in session.passes:
            args = {"rows": p.rows, "loading_ms": round(p.loading * 1e3, 3)}
            yield TimelinePart(Level.PASS, f"{role} pass", p.start, p.end, args, role)
