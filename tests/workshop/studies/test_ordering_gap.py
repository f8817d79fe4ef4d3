"""The best order of small prefills: no policy beats it, and it is what can be worked out by hand."""

from __future__ import annotations

import pytest

pytest.importorskip("ortools")

from repro.device.op import CPU, NPU
from repro.methods.mllm_npu.scheduling import ORDERS, SubgraphTask, schedule
from workshop.studies import ordering_gap


@pytest.mark.parametrize("seed", range(4))
def test_no_order_beats_the_best(seed: int) -> None:
    tasks = ordering_gap.instance(2, 1, seed)
    best = ordering_gap.optimum(tasks, 30.0)
    assert best is not None
    for choose in ORDERS.values():
        assert schedule(tasks, choose).seconds >= best
    assert all(gap >= 0 for gap in ordering_gap.gaps(tasks, best).values())


def test_the_best_order_of_a_case_worked_out_by_hand() -> None:
    # The NPU does best to begin with the short task, behind which the CPU's long one hides the other.
    tasks = [SubgraphTask(NPU, 5), SubgraphTask(NPU, 1), SubgraphTask(CPU, 6, (1,))]
    assert ordering_gap.optimum(tasks, 30.0) == 7
    assert schedule(tasks, ORDERS["longest_first"]).seconds == 12


def test_the_command_says_how_far_each_order_is(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--instances", "2", "--chunks", "2", "--layers", "1", "--timed", "0.001"]
    assert ordering_gap.main(arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 instances of 2 chunks")
    assert all(name in out for name in ORDERS)
