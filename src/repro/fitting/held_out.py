"""Predictions of observations that a fit did not see. Must not know what is measured."""

from __future__ import annotations

from collections.abc import Callable

from repro.fitting.problem import Observation, Problem, Solution, solve


def leave_out(
    problem: Problem, whole: Solution, bundle: Callable[[Observation], str] | None = None
) -> dict[str, float]:
    """Predicted values by observation id, each from a fit that saw nothing of its bundle.

    Args:
        problem: the whole problem; observations that it already leaves out are not predicted here.
        whole: its solution, from which each search begins.
        bundle: what an observation is left out with; its own bundle by default.
    """
    name = bundle or (lambda one: one.together)
    seen = [o for o in problem.observations if o.id not in problem.absent]
    found: dict[str, float] = {}
    for held in dict.fromkeys(name(o) for o in seen):
        ids = [o.id for o in seen if name(o) == held]
        blind = problem.without(ids)
        predicted = problem.predicted(solve(blind, whole.values).values)
        found |= {one: predicted[one] for one in ids}
    return found
