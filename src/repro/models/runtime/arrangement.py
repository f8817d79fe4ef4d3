"""A forward pass, and how its layers are laid on a device's processors.

`IN_ORDER` is what happens by itself: one op after the other on one processor. A method that lays them
otherwise gives the engine an arrangement (`Engine.arrange`), which makes its ops with the engine's functions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from repro.models.forward.network import Logits, Step
from repro.models.tokens.prefix import Prefix

if TYPE_CHECKING:
    from repro.models.runtime.engine import Engine


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


class Arrangement(ABC):
    """Runs the layers of the passes that it takes, and their output projection."""

    def takes(self, forward_pass: ForwardPass) -> bool:
        """Whether it lays this pass; others run in order."""
        return True

    def leave(self) -> None:
        """Undo what it changed beside the ops; called when another arrangement, or none, takes its place."""

    @abstractmethod
    async def layers(self, engine: Engine, forward_pass: ForwardPass) -> None:
        """Run the layers of a pass."""

    async def project(
        self, engine: Engine, rows: int, compute: Callable[[], list[Logits]], on: str
    ) -> list[Logits]:
        """Run the output projection of `rows` rows, by itself on processor `on`."""
        together = engine.model_cost.shape.sharing(rows, projected=True)
        logits: list[Logits] = await engine.run(
            engine.op("head", on, together, engine.model_cost.head(rows), compute)
        )
        return logits


class InOrder(Arrangement):
    """Resident layers in runs of `Placement.run`, streamed ones singly as they arrive.

    A pass with an exit point is pruned before the costed layer that computes its layer of the checkpoint.
    """

    async def layers(self, engine: Engine, forward_pass: ForwardPass) -> None:
        """See `Arrangement`."""
        exit_point, resident = forward_pass.exit_point, engine.residency.layers
        look = _exit_before(engine, exit_point.layer) if exit_point else 0
        for first, last in _runs(engine, look):
            if exit_point and first == look:
                await _prune(engine, forward_pass, exit_point)
            weights = None if first < resident else await engine.take(first)
            streamed = None if weights is None else [weights]
            # With fewer costed layers than real ones, no costed layer may end where the predictor reads.
            begin, end = (
                exit_point.layer if exit_point and layer == look else engine.real(layer)
                for layer in (first, last)
            )
            compute = partial(forward_pass.step.layers, begin, end, streamed)
            rows, count = forward_pass.rows, last - first
            name = f"layer {first}" if count == 1 else f"layers {first}-{last - 1}"
            together = engine.model_cost.shape.sharing(rows)
            on = engine.lay_on(forward_pass.on or engine.processor_of(rows))
            cost = engine.layers_cost(forward_pass, first, last)
            await engine.run(engine.op("layer", on, together, cost, compute, name, count))
            if first >= resident:
                engine.give_back(first)


IN_ORDER = InOrder()


def _runs(engine: Engine, cut: int) -> Iterator[tuple[int, int]]:
    """Layer ranges per op: resident layers in runs, cut at layer `cut`; streamed layers singly."""
    resident = engine.residency.layers
    run = engine.placement.run or resident or 1
    first = 0
    while first < resident:
        last = min(first + run, resident)
        if first < cut < last:
            last = cut
        yield first, last
        first = last
    for layer in range(resident, engine.model_cost.shape.layers):
        yield layer, layer + 1


def _exit_before(engine: Engine, layer: int) -> int:
    """The costed layer before which an exit after `layer` layers of the checkpoint is billed.

    The first that maps to layer `layer` or to a later one, and the last costed layer where none does.
    """
    costed = engine.model_cost.shape.layers
    return min(-(-layer * costed // engine.network.depth), costed - 1)


async def _prune(engine: Engine, forward_pass: ForwardPass, exit_point: EarlyExitPoint) -> None:
    """Prune the requested sequences in the middle of a pass; dropped ones leave the KV cache too."""
    weights = exit_point.scored * engine.model_cost.shape.hidden
    cost = 2.0 * weights, engine.model_cost.weight_bytes(weights)
    judge = partial(exit_point.judge, forward_pass.step)
    op = engine.op("prune", engine.head_on, forward_pass.rows, cost, judge)
    forward_pass.survivors = await engine.run(op)
    forward_pass.rows -= exit_point.sequences - len(forward_pass.survivors)
