"""Gap of each order of a prefill's subgraphs to the optimal one, and the time to decide an order.

python -m workshop.studies.ordering_gap
python -m workshop.studies.ordering_gap --instances 50 --chunks 4 --layers 2 --seed 1

An instance is a model's prefill in chunks, cut as mllm-NPU cuts it (sec. 3.4), with random integer durations,
those of the NPU's subgraphs longer than the CPU's as in the paper. The optimal makespan is found by OR-tools'
CP-SAT (`pip install -e '.[exact]'`); instances not solved in time are counted and left out. The gap is the
share by which an order is longer. Decisions are timed on 1024 tokens of Qwen1.5-1.8B.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from ortools.sat.python import cp_model

from repro.device.op import NPU
from repro.methods.mllm_npu.scheduling import ORDERS, Policy, SubgraphTask, schedule
from repro.models.costs.subgraphs import Layout, shadowed, subgraphs
from workshop.fitting.measures import model_cost

QWEN = model_cost("qwen1_5_1_8b_int8")
CHUNK = 256


def instance(chunks: int, layers: int, seed: int) -> list[SubgraphTask]:
    """A prefill of `chunks` chunks; equal durations per kind of subgraph, except that attention grows."""
    chance = random.Random(seed)
    billed = replace(QWEN, shape=replace(QWEN.shape, layers=layers))
    took: dict[tuple[str, str], int] = {}
    out = []
    for part in subgraphs(billed, Layout(CHUNK), chunks * CHUNK):
        kind = part.stage, part.op.on
        base = took.setdefault(kind, chance.randint(4, 20) if part.op.on == NPU else chance.randint(1, 10))
        grown = 1 + part.chunk if part.op.kind == "attention" else 1
        out.append(SubgraphTask(part.op.on, float(base * grown), part.after))
    return out


def optimum(tasks: Sequence[SubgraphTask], seconds: float) -> float | None:
    """The optimal makespan of tasks with integer durations; `None` if the solver runs out of time."""
    model = cp_model.CpModel()
    horizon = round(sum(task.seconds for task in tasks))
    starts = [model.new_int_var(0, horizon, f"start {i}") for i in range(len(tasks))]
    spans = [
        model.new_fixed_size_interval_var(start, round(task.seconds), f"span {i}")
        for i, (start, task) in enumerate(zip(starts, tasks, strict=True))
    ]
    end = model.new_int_var(0, horizon, "end")
    for place, task in enumerate(tasks):
        model.add(end >= starts[place] + round(task.seconds))
        for before in task.after:
            model.add(starts[place] >= starts[before] + round(tasks[before].seconds))
    for on in {task.on for task in tasks}:
        model.add_no_overlap([spans[i] for i, task in enumerate(tasks) if task.on == on])
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    return solver.objective_value if solver.solve(model) == cp_model.OPTIMAL else None


def gaps(tasks: Sequence[SubgraphTask], best: float) -> dict[str, float]:
    """How much longer than the optimum each order is, as a share."""
    return {name: schedule(tasks, choose).seconds / best - 1 for name, choose in ORDERS.items()}


def decided(choose: Policy, seconds: float) -> Iterator[tuple[int, float]]:
    """Number of decisions and their seconds, per prefill, until `seconds` of deciding have passed."""
    layout = Layout(CHUNK, shadowed=shadowed(QWEN.shape.layers, 0.85, 0.003), cold=0.2)
    tasks = [SubgraphTask(p.op.on, p.op.flops + 1, p.after) for p in subgraphs(QWEN, layout, 4 * CHUNK)]
    spent = 0.0
    while spent < seconds:
        asked, took = 0, 0.0

        def timed(agenda, on):  # type: ignore[no-untyped-def]
            nonlocal asked, took
            began = time.perf_counter()
            place = choose(agenda, on)
            took += time.perf_counter() - began
            asked += place is not None
            return place

        schedule(tasks, timed)
        spent += took
        yield asked, took


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--instances", type=int, default=20)
    parser.add_argument("--chunks", type=int, default=3)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds that the solver may take for one")
    parser.add_argument("--timed", type=float, default=0.2, help="seconds of decisions of each order")
    options = parser.parse_args(arguments)
    found: dict[str, list[float]] = {name: [] for name in ORDERS}
    unsolved = 0
    for number in range(options.instances):
        tasks = instance(options.chunks, options.layers, 1000 * options.seed + number)
        best = optimum(tasks, options.limit)
        if best is None:
            unsolved += 1
            continue
        for name, gap in gaps(tasks, best).items():
            found[name].append(gap)
    print(f"{options.instances - unsolved} instances of {options.chunks} chunks and {options.layers} layers")
    print(f"{unsolved} more were not solved in {options.limit:g} s")
    print(f"{'order':14}{'best':>7}{'mean gap':>10}{'max gap':>9}{'decisions/s':>13}{'us each':>9}")
    for name, own in found.items():
        rounds = list(decided(ORDERS[name], options.timed))
        rate = sum(asked for asked, _ in rounds) / sum(took for _, took in rounds)
        best_share = fmean(gap < 1e-9 for gap in own) if own else 0.0
        mean, most = (fmean(own), max(own)) if own else (0.0, 0.0)
        print(f"{name:14}{best_share:7.0%}{mean:10.1%}{most:9.1%}{rate:13.0f}{1e6 / rate:9.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
