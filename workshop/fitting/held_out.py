"""Predictions of observations that a fit did not see. Must not know what is measured."""

from __future__ import annotations

from collections.abc import Collection
from math import log

from workshop.fitting.problem import Problem, Solution, Values, solve


def leave_out(problem: Problem, whole: Solution, loss: str = "soft_l1") -> dict[str, float]:
    """Predicted values by observation id, each from a fit that saw nothing of its bundle.

    Observations on which alone a number rests have none: their fit would leave it where the whole fit put it.

    Args:
        problem: the whole problem; observations that it already leaves out are not predicted here.
        whole: its solution, from which each search begins.
        loss: as of `solve`.
    """
    seen = [o for o in problem.observations if o.id not in problem.absent]
    found: dict[str, float] = {}
    for held in dict.fromkeys(o.together for o in seen):
        ids = [o.id for o in seen if o.together == held]
        if _decided_by(problem, whole.values, ids):
            continue
        blind = problem.without(ids)
        predicted = problem.predicted(solve(blind, whole.values, loss).values)
        found |= {one: predicted[one] for one in ids}
    return found


def _decided_by(problem: Problem, values: Values, ids: Collection[str]) -> list[str]:
    """Numbers that move these observations and none of the others that are seen."""
    before, decided = problem.predicted(values), []
    for parameter in problem.parameters:
        if parameter.high > parameter.low:
            after = problem.predicted({**values, parameter.name: values[parameter.name] * 1.01})
            moved = {name for name in before if abs(log(after[name] / before[name])) > 1e-9}
            if moved and moved - problem.absent <= set(ids):
                decided.append(parameter.name)
    return decided
