"""Predictions of observations that a fit did not see. Must not know what is measured."""

from __future__ import annotations

from repro.fitting.problem import Problem, Solution, solve


def leave_out(problem: Problem, whole: Solution, loss: str = "soft_l1") -> dict[str, float]:
    """Predicted values by observation id, each from a fit that saw nothing of its bundle.

    Args:
        problem: the whole problem; observations that it already leaves out are not predicted here.
        whole: its solution, from which each search begins.
        loss: as of `solve`.
    """
    seen = [o for o in problem.observations if o.id not in problem.absent]
    found: dict[str, float] = {}
    for held in dict.fromkeys(o.together for o in seen):
        ids = [o.id for o in seen if o.together == held]
        blind = problem.without(ids)
        predicted = problem.predicted(solve(blind, whole.values, loss).values)
        found |= {one: predicted[one] for one in ids}
    return found
