"""Which layers of a checkpoint run before and after an early exit, whatever number of layers is billed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from repro.device.emulated import EmulatedDevice
from repro.models.costs.model_cost import ModelCost
from repro.models.forward.network import KnownStep, LayerWeights, Logits, NoNetwork, Step
from repro.models.runtime.arrangement import EarlyExitPoint, ForwardPass
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT, Placement
from tiny import MODEL_COST, toy

DEPTH = 12


class Telling(KnownStep):
    """A step that tells which layers run, and when rows are dropped."""

    def __init__(self) -> None:
        super().__init__([Logits(None, ([0], [0.0]))] * 3)
        self.told: list[int | str] = []

    def layers(self, first: int, last: int, streamed: Sequence[LayerWeights] | None = None) -> None:
        """The layers, one by one."""
        self.told += range(first, last)

    def drop(self, kept: Sequence[int]) -> None:
        """A mark between the layers."""
        self.told.append("exit")


def told(billed: int, exit_after: int, placement: Placement) -> list[int | str]:
    """What runs in a pass of so many billed layers that drops a row after `exit_after` layers of 12."""
    network = NoNetwork()
    network.depth = DEPTH
    cost = ModelCost(replace(MODEL_COST.shape, layers=billed), MODEL_COST.stored)
    engine = Engine("target", EmulatedDevice(toy()), cost, network, placement)
    step = Telling()

    def judge(of: Step) -> list[int]:
        of.drop([0, 1])
        return [0, 1]

    forward_pass = ForwardPass(step, 3, 0, exit_point=EarlyExitPoint(exit_after, 3, 3, judge))
    engine.device.play(engine.arrangement_of(forward_pass).layers(engine, forward_pass))
    assert forward_pass.rows == 2
    return step.told


@pytest.mark.parametrize(
    "placement", [RESIDENT, replace(RESIDENT, run=1), Placement(resident=0.5), Placement(resident=0.0)]
)
def test_a_predictor_reads_after_its_own_layer(placement: Placement) -> None:
    """Every layer runs once, in order, with the exit where the predictor was trained: 2 to 30 are billed."""
    for billed, exit_after in product((2, 5, 7, 12, 18, 30), range(1, DEPTH)):
        expected = [*range(exit_after), "exit", *range(exit_after, DEPTH)]
        assert told(billed, exit_after, placement) == expected, (billed, exit_after)
