"""A running forward pass, and a pruning step in the middle of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from repro.models.forward.network import Step
from repro.models.tokens.prefix import Prefix


@dataclass(frozen=True)
class EarlyExitPoint:
    """A pruning step before a layer of the checkpoint.

    Attributes:
        layer: layers of the checkpoint that run before it.
        sequences: requested sequences that it judges.
        scored: tokens that it scores, each by one dot product of the hidden size.
        judge: drops positions from the step and returns the indices that continue.
    """

    layer: int
    sequences: int
    scored: int
    judge: Callable[[Step], list[int]]


@dataclass
class ForwardPass:
    """A running forward pass.

    Attributes:
        step: computes it.
        rows: new positions that it computes.
        context: cached positions before them.
        missing: the sequences whose last position it computes, parents first.
        on: the processor that the method names; "" for the one of the placement.
        exit_point: where it is pruned; None for nowhere.
        survivors: indices of the requested sequences that survived pruning; None if nothing was pruned.
    """

    step: Step
    rows: int
    context: int
    missing: Sequence[Prefix] = ()
    on: str = ""
    exit_point: EarlyExitPoint | None = None
    survivors: list[int] | None = None
