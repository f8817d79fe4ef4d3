"""Orders of tasks: what stands on each other stays so, no processor does two at once, and Eq. 6's choice."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
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
    npu_by_contribution,
    out_of_order,
)
from repro.methods.mllm_npu.subgraphs import LINEARS, Layout, subgraphs
from repro.models.costs.model_cost import ModelCost, Shape, precision

MODEL_COST = ModelCost(
    Shape(layers=2, hidden=8, heads=2, kv_heads=2, head_dim=4, intermediate=16, vocab=9), precision("int8")
)


def prefill(chunks: int, seed: int, layers: frozenset[int] = frozenset()) -> list[SubgraphTask]:
    """A prefill's subgraphs with random durations."""
    chance = random.Random(seed)
    kept = {(layer, stage): 0.1 for layer in layers for stage in LINEARS}
    parts = subgraphs(MODEL_COST, Layout(4, shadowed=kept), 4 * chunks)
    return [SubgraphTask(part.op.on, chance.randint(1, 9), part.after) for part in parts]


@dataclass(frozen=True)
class SubgraphSchedule:
    """A simulated schedule.

    Attributes:
        starts: start time of each task, in seconds.
        ends: end time of each task, in seconds.
        decisions: number of calls of the policy.
    """

    starts: tuple[float, ...]
    ends: tuple[float, ...]
    decisions: int

    @property
    def seconds(self) -> float:
        """End of the last task."""
        return max(self.ends, default=0.0)


def schedule(tasks: Sequence[SubgraphTask], choose: Policy) -> SubgraphSchedule:
    """Simulate a policy: one task at a time per processor; free processors choose again after any task ends.

    Raises:
        RuntimeError: all processors are idle with tasks left.
    """
    agenda, now, decisions = Agenda(tasks), 0.0, 0
    starts, ends = [0.0] * len(tasks), [0.0] * len(tasks)
    free, running = set(agenda.processors), list[tuple[float, int]]()
    while agenda.left:
        for on in [on for on in agenda.processors if on in free]:
            decisions += 1
            place = choose(agenda, on)
            if place is not None:
                agenda.start(place)
                free.remove(on)
                starts[place], ends[place] = now, now + tasks[place].seconds
                heapq.heappush(running, (ends[place], place))
        if not running:
            raise RuntimeError("no task may begin and none is under way")
        now, place = heapq.heappop(running)
        agenda.finish(place)
        free.add(tasks[place].on)
    return SubgraphSchedule(tuple(starts), tuple(ends), decisions)


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
    found = schedule(tasks, choose)
    for place, task in enumerate(tasks):
        assert found.ends[place] - found.starts[place] == task.seconds
        assert all(found.ends[before] <= found.starts[place] for before in task.after)
    for on in (CPU, NPU):
        spans = sorted(
            (found.starts[i], found.ends[i]) for i, task in enumerate(tasks) if task.on == on and task.seconds
        )
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert found.seconds <= sum(task.seconds for task in tasks)
    assert found.seconds >= max(sum(task.seconds for task in tasks if task.on == on) for on in (CPU, NPU))


def test_in_order_waits_for_the_head_of_its_queue() -> None:
    tasks = [
        SubgraphTask(NPU, 2),
        SubgraphTask(CPU, 5, (0,)),
        SubgraphTask(NPU, 1, (1,)),
        SubgraphTask(NPU, 4),
    ]
    assert schedule(tasks, in_order).starts == (0, 2, 7, 8)
    assert schedule(tasks, first_ready).starts == (0, 2, 7, 2), (
        "a ready task fills the bubble, the first one first"
    )
    assert schedule(tasks, longest_first).starts == (4, 6, 11, 0)
    assert schedule(tasks, out_of_order).starts == (4, 6, 11, 0)


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


def test_the_mixed_order_is_eq_6_on_the_npu_alone() -> None:
    tasks = [
        SubgraphTask(CPU, 1),
        SubgraphTask(CPU, 1),
        SubgraphTask(NPU, 1),
        SubgraphTask(NPU, 1),
        SubgraphTask(NPU, 3, (0,)),
        SubgraphTask(NPU, 7, (1,)),
        SubgraphTask(CPU, 9, (2,)),
        SubgraphTask(CPU, 2, (3,)),
    ]
    assert [npu_by_contribution(Agenda(tasks), on) for on in (CPU, NPU)] == [0, 3]
    assert [out_of_order(Agenda(tasks), on) for on in (CPU, NPU)] == [1, 3]


def test_one_chunk_has_one_order() -> None:
    tasks = prefill(1, seed=0)
    assert {schedule(tasks, choose).seconds for choose in ORDERS.values()} == {sum(t.seconds for t in tasks)}


def test_chunks_out_of_order_are_faster_than_in_order_on_the_whole() -> None:
    total = {
        name: sum(schedule(prefill(3, seed, frozenset([0])), choose).seconds for seed in range(30))
        for name, choose in ORDERS.items()
    }
    assert total["out_of_order"] < 0.9 * total["in_order"]


def test_a_policy_that_never_chooses_is_said() -> None:
    with pytest.raises(RuntimeError, match="none is under way"):
        schedule([SubgraphTask(CPU, 1)], lambda agenda, on: None)


def test_nothing_takes_no_time() -> None:
    assert schedule([], in_order).seconds == 0
