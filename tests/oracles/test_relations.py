"""Relations between runs: what a faster machine, a smaller model, more prompts or another name must change.

No figure is known here; how two figures stand to each other is. Answers come of random models, so that drafts
are right at times, and of a machine with three processors and flash that compete for memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from repro.device.cost import Curve, Machine
from repro.device.emulated import EmulatedDevice
from repro.device.trace import Trace
from repro.methods.base import Generation, Method, Request
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.methods.ghidorah.ghidorah import Ghidorah
from repro.methods.lever.lever import Lever
from repro.methods.mllm_npu.mllm_npu import MllmNpu
from repro.methods.plain.autoregressive import (
    FlashAutoregressive,
    Sequential,
    Standard,
    StandardPipeline,
    StandardSwapping,
)
from repro.methods.speculative.bld import BigLittle
from repro.methods.speculative.chain_sd import ChainSD, SpeculativeDecoding
from repro.methods.speculative.medusa import Medusa
from repro.methods.speculative.nav import Nav
from repro.methods.speculative.opt_tree import OptTree
from repro.methods.speculative.specinfer import SpecInfer
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.forward.network import Network
from repro.models.runtime.session import Session
from repro.records.record import Scalar
from repro.reports.intervals.bootstrap import Total, interval
from repro.scenarios.generation import figures
from tiny import NoisedNetwork, TableNetwork, opened, processor, toy
from tiny_limits import SURE

STEADY: dict[str, Method] = {
    "std": Standard(),
    "flash_ar": FlashAutoregressive(),
    "std_flash": StandardSwapping(),
    "chain_sd": ChainSD(length=3),
    "bld": BigLittle(most=3),
    "specinfer": SpecInfer(expansion=(1, 2, 1)),
    "opt_tree": OptTree(nodes=6, depth=3),
    "nav": Nav(),
    "medusa": Medusa(width=4),
}
"""Methods that do the same passes whatever these take."""

TIMED: dict[str, Method] = {
    "edgellm": EdgeLLM(limit=5),
    "edgellm, naive": EdgeLLM(limit=5, provisional="naive"),
    "lever": Lever(pruning="off", depth=4, limit=15),
    "mllm_npu": MllmNpu(chunk=4, pruned=0.5),
    "ghidorah": Ghidorah(width=4),
}
"""Methods whose decisions hang on times."""

ALL = STEADY | TIMED
SHAPE = Shape(layers=4, hidden=8, heads=4, kv_heads=4, head_dim=2, intermediate=16, vocab=12)
TARGET, DRAFT = (ModelCost(replace(SHAPE, layers=layers), precision("fp16")) for layers in (4, 1))
HEADS = ModelCost(Shape.of_medusa(4, 8, 12, tied=True), precision("fp16"))
INT8 = ModelCost(SHAPE, precision("int8"))
NAMES = (
    "decode_seconds",
    "prefill_seconds",
    "ttft",
    "latency",
    "time_per_token",
    "target_pass",
    "draft_seconds",
)
TIMES = (*NAMES, "target_loading", "decode_joules", "prefill_joules")
COUNTS = ("decode_tokens", "target_calls", "verification_width", "flash_bytes_per_token", "drafted_per_call")


@dataclass
class Run:
    """The answers to some requests, and what they left behind."""

    device: EmulatedDevice
    answers: list[Generation]
    sessions: Mapping[str, Session]

    @property
    def trace(self) -> Trace:
        """What ran."""
        return self.device.trace

    @property
    def values(self) -> dict[str, Scalar]:
        """The figures of a record."""
        found = dict(figures.timing(self.answers, self.trace)) | figures.calls(self.answers)
        return found | figures.drafting(self.answers) | figures.passes(self.answers, self.sessions)

    def number(self, name: str) -> float:
        """A figure that is there."""
        value = self.values[name]
        assert isinstance(value, (int, float)), name
        return value


def requests(count: int) -> list[Request]:
    """Prompts of several lengths."""
    return [Request(f"r/{i}", (*range(1, 3 + i % 5), i % 11), 9) for i in range(count)]


def run(
    method: Method,
    machine: Machine | None = None,
    asked: Sequence[Request] | None = None,
    target: ModelCost | None = None,
) -> Run:
    """Answer requests one after the other, after the method's preparation."""
    device = EmulatedDevice(machine or toy())
    headed, int8 = isinstance(method, Medusa), isinstance(method, MllmNpu)
    networks: dict[str, Network] = {"target": TableNetwork(12, seed=1, sharpness=2)}
    if "draft" in method.places():
        networks["draft"] = NoisedNetwork(TableNetwork(12, seed=1), strength=0.6)
    costs = {"target": target or (INT8 if int8 else TARGET), "draft": HEADS if headed else DRAFT}
    sessions = opened(method, device, networks, costs)
    for session in sessions.values():
        session.beside = SURE
    serving = device.play(method.prepare(device, sessions))
    answers = []
    for request in asked or requests(6):
        for session in sessions.values():
            session.start(request.prefix)
        answers.append(device.play(serving.serve(request, device, sessions)))
    return Run(device, answers, sessions)


def sped_up(
    machine: Machine, *, flash: float = 1, memory: float = 1, computing: float = 1, starts: float = 1
) -> Machine:
    """The machine with so many times the rate of reading, of memory, of computing, and of launching."""
    processors = {
        name: replace(
            p,
            peak={kind: rate * computing for kind, rate in p.peak.items()},
            bandwidth=p.bandwidth * memory,
            launch=p.launch / starts,
        )
        for name, p in machine.processors.items()
    }
    curve = Curve(tuple((x, rate * flash) for x, rate in machine.flash.bandwidth.points))
    return replace(
        machine,
        processors=processors,
        flash=replace(machine.flash, bandwidth=curve, latency=machine.flash.latency / flash),
        dram_bandwidth=machine.dram_bandwidth * memory,
    )


def test_drafts_here_are_right_at_times() -> None:
    for name in ("chain_sd", "opt_tree", "edgellm", "lever", "medusa", "specinfer"):
        rounds = [r for answer in run(ALL[name]).answers for r in answer.rounds]
        assert 0 < sum(r.accepted for r in rounds) < sum(r.reach for r in rounds), name


# --- a faster machine


@pytest.mark.parametrize("name", ALL)
def test_a_machine_twice_as_fast_in_everything_halves_all_times_and_changes_nothing_else(name: str) -> None:
    before = run(ALL[name])
    after = run(ALL[name], sped_up(toy(), flash=2, memory=2, computing=2, starts=2))
    for figure in TIMES:
        if before.values.get(figure) is not None:
            assert after.values[figure] == pytest.approx(before.number(figure) / 2, rel=1e-9), figure
    for figure in COUNTS:
        assert after.values.get(figure) == before.values.get(figure), figure
    assert [a.tokens for a in after.answers] == [b.tokens for b in before.answers]


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("part", ["flash", "memory", "computing", "starts"])
def test_a_machine_with_a_part_twice_as_fast_takes_no_longer_and_no_less_than_half(
    name: str, part: str
) -> None:
    before, after = run(STEADY[name]), run(STEADY[name], sped_up(toy(), **{part: 2.0}))
    for figure in ("ttft", "latency", "decode_seconds"):
        assert before.number(figure) / 2 <= after.number(figure) * (1 + 1e-9)
        assert after.number(figure) <= before.number(figure) * (1 + 1e-9)
    for earlier, later in zip(before.answers, after.answers, strict=True):
        assert later.ended - later.arrived <= (earlier.ended - earlier.arrived) * (1 + 1e-9)


BOUND = {
    "flash": sped_up(toy(), memory=1e9, computing=1e9, starts=1e9),
    "memory": sped_up(toy(), flash=1e9, computing=1e9, starts=1e9),
    "computing": sped_up(toy(), flash=1e9, memory=1e9, starts=1e9),
    "starts": sped_up(toy(), flash=1e9, memory=1e9, computing=1e9),
}


RESIDENT = ("std", "medusa")
"""Methods that read nothing."""


@pytest.mark.parametrize(
    ("name", "part"), [(n, p) for n in STEADY for p in BOUND if not (p == "flash" and n in RESIDENT)]
)
def test_what_is_bound_by_a_part_takes_half_the_time_with_twice_of_it(name: str, part: str) -> None:
    before, after = run(STEADY[name], BOUND[part]), run(STEADY[name], sped_up(BOUND[part], **{part: 2.0}))
    assert after.number("decode_seconds") == pytest.approx(before.number("decode_seconds") / 2, rel=1e-4)


# --- a smaller model, fewer rows


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize(
    "change", [{"layers": 3}, {"intermediate": 8}, {"vocab": 6}, {"kv_heads": 2}], ids=str
)
def test_a_smaller_target_takes_no_longer(name: str, change: dict[str, int]) -> None:
    smaller = ModelCost(replace(SHAPE, **change), precision("fp16"))
    before, after = run(STEADY[name]), run(STEADY[name], target=smaller)
    for figure in ("ttft", "decode_seconds", "decode_joules"):
        assert after.number(figure) <= before.number(figure) * (1 + 1e-9)
    narrower = run(STEADY[name], target=ModelCost(SHAPE, precision("int8")))
    assert narrower.number("decode_seconds") <= before.number("decode_seconds") * (1 + 1e-9)


# --- prompts


@pytest.mark.parametrize("name", [*STEADY, "mllm_npu", "ghidorah"])
def test_the_order_of_prompts_changes_nothing(name: str) -> None:
    """EdgeLLM reads ahead and LEVER learns from request to request: theirs may."""
    asked = requests(6)
    forward, backward = run(ALL[name], asked=asked), run(ALL[name], asked=asked[::-1])
    by_id = {answer.request.id: answer for answer in backward.answers}
    for answer in forward.answers:
        other = by_id[answer.request.id]
        assert (other.tokens, len(other.rounds)) == (answer.tokens, len(answer.rounds))
        assert other.ended - other.arrived == pytest.approx(answer.ended - answer.arrived, rel=1e-9)
    for figure, value in forward.values.items():
        assert backward.values[figure] == (pytest.approx(value, rel=1e-9) if value is not None else None), (
            figure
        )


@pytest.mark.parametrize("name", ["flash_ar", "chain_sd", "opt_tree"])
def test_a_figure_of_all_is_the_ratio_of_the_parts_totals_and_no_mean_of_their_ratios(name: str) -> None:
    asked = requests(9)
    whole, parts = run(ALL[name], asked=asked), [run(ALL[name], asked=own) for own in (asked[:2], asked[2:])]
    tokens, seconds, calls, joules = (
        sum(part.number(figure) for part in parts)
        for figure in ("decode_tokens", "decode_seconds", "target_calls", "decode_joules")
    )
    assert whole.number("decode_tokens_per_s") == pytest.approx(tokens / seconds)
    assert whole.number("joules_per_token") == pytest.approx(joules / tokens)
    assert whole.number("target_calls") == calls
    mean = np.mean([part.number("decode_tokens_per_s") for part in parts])
    assert name == "flash_ar" or whole.number("decode_tokens_per_s") != pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("name", ["chain_sd", "specinfer"])
def test_twice_the_prompts_leave_a_mean_in_its_interval(name: str) -> None:
    """In 95% of the cases, of all prompts; so of six halves one may miss."""
    inside = []
    for seed in range(6):
        asked = [replace(r, prompt=(*r.prompt, seed, i % 7)) for i, r in enumerate(requests(30))]
        answers = run(ALL[name], asked=asked).answers
        totals = {
            a.request.id: Total(len(a.tokens) - 1, sum(r.end - r.start for r in a.rounds)) for a in answers
        }
        ends = interval(dict(list(totals.items())[:15]))
        assert ends is not None
        whole = sum(t.numerator for t in totals.values()) / sum(t.denominator for t in totals.values())
        inside.append(ends[0] <= whole <= ends[1])
    assert sum(inside) >= 5


# --- names

SYNONYMS: list[tuple[Method, Method]] = [
    (Standard(), Sequential()),
    (FlashAutoregressive(), StandardPipeline()),
    (FlashAutoregressive(prefetch=0), StandardSwapping()),
    (ChainSD(length=7, prefetch=0), SpeculativeDecoding()),
    (FlashAutoregressive(resident=1.0), Standard()),
    (Medusa(width=4), Ghidorah(width=4, divided=False)),
]


@pytest.mark.parametrize(("one", "other"), SYNONYMS, ids=str)
def test_two_names_of_a_method_give_the_same_figures(one: Method, other: Method) -> None:
    first, second = run(one), run(other)
    assert [a.tokens for a in first.answers] == [a.tokens for a in second.answers]
    for name in (*TIMES, *COUNTS):
        if first.values.get(name) is not None:
            assert second.values[name] == pytest.approx(first.number(name), rel=1e-9), name


@pytest.mark.parametrize("name", ALL)
def test_the_name_of_a_device_changes_nothing(name: str) -> None:
    assert run(ALL[name], replace(toy(), name="another")).values == run(ALL[name]).values


def test_two_processors_that_are_alike_are_one_and_the_same() -> None:
    alike = {"cpu": processor(), "gpu": processor(), "npu": processor()}
    for main in alike:
        machine = toy(processors=alike, main=main)
        assert (
            run(ChainSD(length=3), machine).values
            == run(ChainSD(length=3), replace(machine, main="cpu")).values
        )


# --- energy


@pytest.mark.parametrize("name", ALL)
def test_joules_are_the_integral_of_power_over_the_timeline(name: str) -> None:
    """Power at a moment is idle power and that of the resource of every op under way."""
    machine = toy()
    done = run(ALL[name], machine)
    watts = {on: p.watts for on, p in machine.processors.items()} | {"flash": machine.flash.watts}
    spans = [(s.start, s.end, watts[s.on]) for s in done.trace]
    start, end, power = (np.array(column) for column in zip(*spans, strict=True))

    def joules(windows: Sequence[tuple[float, float]]) -> float:
        total = 0.0
        for first, last in windows:
            edges = np.unique(np.clip(np.concatenate([start, end, [first, last]]), first, last))
            middle = (edges[1:] + edges[:-1]) / 2
            under_way = (start[:, None] <= middle) & (middle < end[:, None])
            total += float(np.sum(np.diff(edges) * (machine.idle_watts + power @ under_way)))
        return total

    decoding = [(a.rounds[0].start, a.ended) for a in done.answers]
    prefilling = [(a.arrived, a.rounds[0].start) for a in done.answers]
    assert done.number("decode_joules") == pytest.approx(joules(decoding), rel=1e-9)
    assert done.number("prefill_joules") == pytest.approx(joules(prefilling), rel=1e-9)
    whole = [(a.arrived, a.ended) for a in done.answers]
    assert done.number("decode_joules") + done.number("prefill_joules") == pytest.approx(
        joules(whole), rel=1e-9
    )
