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
        scored_rows: tokens that it scores, each by one dot product of the hidden size.
        judge: drops positions from the step and returns the indices that continue.
    """

    layer: int
    sequences: int
    scored_rows: int
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
        self, engine: Engine, row_count: int, compute: Callable[[], list[Logits]], on: str
    ) -> list[Logits]:
        """Run the output projection of `row_count` rows, by itself on processor `on`."""
        row_group = engine.model_cost.shape.sharing(row_count, projected=True)
        logits: list[Logits] = await engine.run(
            engine.op("head", on, row_group, engine.model_cost.head(row_count), compute)
        )
        return logits


class InOrder(Arrangement):
    """Resident layers in runs of `Placement.run`, streamed ones singly as they arrive.

    A pass with an exit point is pruned before the costed layer that computes its layer of the checkpoint.
    """

    async def layers(self, engine: Engine, forward_pass: ForwardPass) -> None:
        """See `Arrangement`."""
        exit_point, resident_layers = forward_pass.exit_point, engine.residency.layers
        exit_layer = _exit_before(engine, exit_point.layer) if exit_point else 0
        for first_layer, end_layer in _runs(engine, exit_layer):
            if exit_point and first_layer == exit_layer:
                await _prune(engine, forward_pass, exit_point)
            weights = None if first_layer < resident_layers else await engine.take(first_layer)
            streamed_weights = None if weights is None else [weights]
            # With fewer costed layers than real ones, no costed layer may end where the predictor reads.
            real_first, real_end = (
                exit_point.layer if exit_point and layer == exit_layer else engine.real(layer)
                for layer in (first_layer, end_layer)
            )
            compute = partial(forward_pass.step.layers, real_first, real_end, streamed_weights)
            row_count, count = forward_pass.rows, end_layer - first_layer
            name = f"layer {first_layer}" if count == 1 else f"layers {first_layer}-{end_layer - 1}"
            row_group = engine.model_cost.shape.sharing(row_count)
            processor = engine.lay_on(forward_pass.on or engine.processor_of(row_count))
            cost = engine.layers_cost(forward_pass, first_layer, end_layer)
            await engine.run(engine.op("layer", processor, row_group, cost, compute, name, count))
            if first_layer >= resident_layers:
                engine.give_back(first_layer)


IN_ORDER = InOrder()


def _runs(engine: Engine, exit_layer: int) -> Iterator[tuple[int, int]]:
    """Layer ranges per op: resident layers in runs, cut at layer `exit_layer`; streamed layers singly."""
    resident_layers = engine.residency.layers
    run_length = engine.placement.run or resident_layers or 1
    first_layer = 0
    while first_layer < resident_layers:
        end_layer = min(first_layer + run_length, resident_layers)
        if first_layer < exit_layer < end_layer:
            end_layer = exit_layer
        yield first_layer, end_layer
        first_layer = end_layer
    for layer in range(resident_layers, engine.model_cost.shape.layers):
        yield layer, layer + 1


def _exit_before(engine: Engine, layer: int) -> int:
    """The costed layer before which an exit after `layer` layers of the checkpoint is billed.

    The first that maps to layer `layer` or to a later one, and the last costed layer where none does.
    """
    costed_layers = engine.model_cost.shape.layers
    return min(-(-layer * costed_layers // engine.network.depth), costed_layers - 1)


async def _prune(engine: Engine, forward_pass: ForwardPass, exit_point: EarlyExitPoint) -> None:
    """Prune the requested sequences in the middle of a pass; dropped ones leave the KV cache too."""
    weights = exit_point.scored_rows * engine.model_cost.shape.hidden
    cost = 2.0 * weights, engine.model_cost.weight_bytes(weights)
    judge = partial(exit_point.judge, forward_pass.step)
    op = engine.op("prune", engine.head_on, forward_pass.rows, cost, judge)
    forward_pass.survivors = await engine.run(op)
    forward_pass.rows -= exit_point.sequences - len(forward_pass.survivors)
