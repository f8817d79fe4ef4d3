"""Orders of tasks: what stands on each other stays so, no processor does two at once, and Eq. 6's choice."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.device.op import CPU, NPU
from repro.methods.mllm_npu.scheduling import (
    ORDERS,
    Agenda,
    Policy,
    SubgraphTask,
    contribution,
    first_ready,
    in_order,
    longest_first,
    out_of_order,
)
from repro.methods.mllm_npu.subgraphs import LINEARS, Layout, subgraphs
from repro.models.costs.model_cost import ModelCost, Shape, precision

MODEL_COST = ModelCost(
    Shape(layers=2, hidden=8, heads=2, kv_heads=2, head_dim=4, intermediate=16, vocab=9), precision("int8")
)


def prefill(chunks: int, seed: int) -> list[SubgraphTask]:
    """A prefill's subgraphs with random durations; the first layer keeps its outliers."""
    chance = random.Random(seed)
    kept = {(0, stage): 0.1 for stage in LINEARS}
    parts = subgraphs(MODEL_COST, Layout(4, shadowed=kept), 4 * chunks)
    return [SubgraphTask(part.op.on, chance.randint(1, 9), part.parents) for part in parts]


def schedule(tasks: Sequence[SubgraphTask], choose: Policy) -> tuple[list[float], list[float]]:
    """Return starts and ends of tasks, one at a time on each processor, which chooses again as any ends."""
    agenda, now = Agenda(tasks), 0.0
    starts, ends = [0.0] * len(tasks), [0.0] * len(tasks)
    free, running = set(agenda.processors), list[tuple[float, int]]()
    while agenda.left:
        for on in [on for on in agenda.processors if on in free]:
            place = choose(agenda, on)
            if place is not None:
                agenda.start(place)
                free.remove(on)
                starts[place], ends[place] = now, now + tasks[place].seconds
                heapq.heappush(running, (ends[place], place))
        now, place = heapq.heappop(running)
        agenda.finish(place)
        free.add(tasks[place].on)
    return starts, ends


@st.composite
def any_tasks(draw: st.DrawFn) -> list[SubgraphTask]:
    """Any tasks at all on two processors."""
    out: list[SubgraphTask] = []
    for place in range(draw(st.integers(1, 14))):
        after = draw(st.sets(st.integers(0, place - 1), max_size=3)) if place else set()
        on = draw(st.sampled_from((CPU, NPU)))
        out.append(SubgraphTask(on, float(draw(st.integers(0, 9))), tuple(sorted(after))))
    return out


@pytest.mark.parametrize("choose", ORDERS.values(), ids=ORDERS)
@given(tasks=any_tasks())
@settings(max_examples=40)
def test_every_order_keeps_to_dependencies_and_to_one_task_at_a_time(
    choose: Policy, tasks: list[SubgraphTask]
) -> None:
    starts, ends = schedule(tasks, choose)
    for place, task in enumerate(tasks):
        assert ends[place] - starts[place] == task.seconds
        assert all(ends[before] <= starts[place] for before in task.parents)
    for on in (CPU, NPU):
        spans = sorted((starts[i], ends[i]) for i, task in enumerate(tasks) if task.on == on and task.seconds)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert max(ends) <= sum(task.seconds for task in tasks)
    assert max(ends) >= max(sum(task.seconds for task in tasks if task.on == on) for on in (CPU, NPU))


def test_in_order_waits_for_the_head_of_its_queue() -> None:
    tasks = [
        SubgraphTask(NPU, 2),
        SubgraphTask(CPU, 5, (0,)),
        SubgraphTask(NPU, 1, (1,)),
        SubgraphTask(NPU, 4),
    ]
    assert schedule(tasks, in_order)[0] == [0, 2, 7, 8]
    assert schedule(tasks, first_ready)[0] == [0, 2, 7, 2], "a ready task fills the bubble"
    assert schedule(tasks, longest_first)[0] == [4, 6, 11, 0]
    assert schedule(tasks, out_of_order)[0] == [4, 6, 11, 0]


def test_c_is_the_npu_work_that_a_cpu_task_frees_and_less_the_cpu_work_that_an_npu_task_frees() -> None:
    tasks = [
        SubgraphTask(CPU, 1),
        SubgraphTask(CPU, 1),
        SubgraphTask(NPU, 7, (0,)),
        SubgraphTask(NPU, 3, (1,)),
        SubgraphTask(NPU, 2, (0, 1)),
        SubgraphTask(CPU, 6, (2,)),
    ]
    agenda = Agenda(tasks)
    assert [contribution(agenda, place) for place in (0, 1)] == [7, 3]
    assert out_of_order(agenda, CPU) == 0
    agenda.start(0)
    agenda.finish(0)
    assert contribution(agenda, 1) == 5  # and now also what waited for both
    assert contribution(agenda, 2) == -6


def test_the_npu_prefers_what_frees_least_work_elsewhere() -> None:
    tasks = [
        SubgraphTask(NPU, 1),
        SubgraphTask(NPU, 1),
        SubgraphTask(CPU, 9, (0,)),
        SubgraphTask(CPU, 2, (1,)),
    ]
    assert out_of_order(Agenda(tasks), NPU) == 1
    assert longest_first(Agenda(tasks), NPU) == 0


def test_chunks_out_of_order_are_faster_than_in_order_on_the_whole() -> None:
    total = {
        name: sum(max(schedule(prefill(3, seed), choose)[1]) for seed in range(30))
        for name, choose in ORDERS.items()
    }
    assert total["out_of_order"] < 0.9 * total["in_order"]
