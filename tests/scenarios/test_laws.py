"""What every record must obey, whatever computed it; and that each law finds a fault of its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from repro.core.paths import project_root
from repro.device.emulated import EmulatedDevice
from repro.methods.base import Generation, Request
from repro.methods.edgellm.edgellm import EdgeLLM
from repro.models.runtime.session import Session
from repro.records.results import open_results
from repro.scenarios.generation import figures, trace_laws
from repro.scenarios.laws import BrokenLawError, broken_laws, require
from tiny import MODEL_COST, TableNetwork, opened, toy

Run = tuple[list[Generation], Mapping[str, Session], EmulatedDevice]


def test_every_committed_record_obeys_the_laws() -> None:
    results = open_results(project_root() / "results")
    records = {record.key: record for record in results.all() if record.done}
    assert len(records) > 1000
    broken = [
        f"{record.experiment} {record.labels['method']} {record.key[:12]}: {law}"
        for record in records.values()
        for law in broken_laws(record.values, results.rounds(record.key), results.answers(record.key))
    ]
    assert not broken, "\n".join(broken[:40])


def decoded() -> Run:
    """Two prompts decoded by EdgeLLM with provisional drafts, streaming, on the toy machine."""
    device = EmulatedDevice(toy())
    networks = {
        "target": TableNetwork(10, seed=1, sharpness=2),
        "draft": TableNetwork(10, seed=1, sharpness=1.5),
    }
    method = EdgeLLM(limit=5, choices=3)
    sessions = opened(method, device, networks, dict.fromkeys(networks, MODEL_COST))
    answers = []
    for name in ("a", "b"):
        request = Request(name, (1, 2, 3), 24)
        for session in sessions.values():
            session.start(request.prefix)
        answers.append(device.play(method.serve(request, device, sessions)))
    return answers, sessions, device


def values_of(run: Run) -> dict[str, Any]:
    answers, sessions, device = run
    timing = (
        figures.timing(answers, device.trace) | figures.calls(answers) | figures.passes(answers, sessions)
    )
    return timing | figures.drafting(answers)


def lines_of(run: Run) -> list[dict[str, Any]]:
    return figures.round_rows(run[0])


def answers_of(run: Run) -> list[dict[str, Any]]:
    costs = figures.by_answer(run[0], run[1], run[2].trace)
    return [{"request": answer.request.id, **cost} for answer, cost in zip(run[0], costs, strict=True)]


def test_a_run_obeys_them() -> None:
    run = decoded()
    assert [*trace_laws.broken_laws(*run, values_of(run))] == []
    assert [*broken_laws(values_of(run), lines_of(run), answers_of(run))] == []


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ({"prefill_seconds": 1.05}, "all latency is prefill or decoding"),
        ({"latency": 1e3}, "all latency is prefill or decoding"),
        ({"decode_tokens_per_s": 1e3}, "decode_tokens_per_s * decode_seconds"),
        ({"time_per_token": 1e-3}, "time_per_token * decode_tokens"),
        ({"joules_per_token": -1}, "joules_per_token * decode_tokens"),
        ({"decode_joules": 1.01}, "decode_joules add up"),
        ({"target_loading": 2}, "a pass loads or computes"),
        ({"ttft": 2}, "first tokens come within the prefills"),
        ({"target_pass": 10}, "verifications lie in the decoding"),
        ({"draft_seconds": 10}, "draft passes lie in the decoding"),
        ({"flash_busy": 1e3}, "flash_busy lies between 0 and 1"),
        ({"decode_tokens": 2}, "the rounds' tokens add up"),
    ],
)
def test_a_figure_that_contradicts_another_is_found(change: Mapping[str, float], law: str) -> None:
    run = decoded()
    values = {name: value * change.get(name, 1) if value else value for name, value in values_of(run).items()}
    broken = [*broken_laws(values, lines_of(run), answers_of(run))]
    assert any(law in sentence for sentence in broken), broken
    with pytest.raises(BrokenLawError, match="contradict each other"):
        require(broken)


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (lambda line: {"start": line["start"] - 0.5}, "starts where the last one ends"),
        (lambda line: {"emitted": line["emitted"] + 2}, "and at most one more"),
        (lambda line: {"reach": line["drafted"] + 1}, "accepted <= reach <= drafted"),
    ],
)
def test_a_round_that_contradicts_another_is_found(
    change: Callable[[Mapping[str, Any]], dict[str, Any]], law: str
) -> None:
    run = decoded()
    lines = lines_of(run)
    lines[1] |= change(lines[1])
    assert any(law in sentence for sentence in broken_laws(values_of(run), lines, answers_of(run)))


def counted_twice(run: Run) -> Run:
    """As it was: decoding counts from the first token, while the draft still reads the prompt."""
    answers, sessions, device = run
    for answer in answers:
        answer.rounds[0] = answer.rounds[0]._replace(start=answer.first)
    return answers, sessions, device


def forgotten_power(run: Run) -> Run:
    """The first op of the decoding took no energy."""
    answers, sessions, device = run
    index, span = next((i, s) for i, s in enumerate(device.trace.spans) if s.start >= answers[0].prefilled)
    device.trace.spans[index] = span._replace(joules=-span.joules)
    return answers, sessions, device


def unread_layer(run: Run) -> Run:
    """A layer was read two times too seldom: once may be the read ahead of a pass that never came."""
    spans = run[2].trace.spans
    first = next(span.name for span in spans if trace_laws.STREAMED_LOAD.fullmatch(span.name))
    for span in [span for span in spans if span.name == first][:2]:
        spans.remove(span)
    return run


def faster_than_memory(run: Run) -> Run:
    """An op's bytes in a unit that is a thousand times too small."""
    device = run[2]
    index, span = max(enumerate(device.trace.spans), key=lambda item: item[1].bytes)
    device.trace.spans[index] = span._replace(bytes=1e3 * span.bytes)
    return run


def overlapping_phases(run: Run) -> Run:
    """A prefill that ends after the decoding began."""
    phases = run[2].trace.phases
    index = next(i for i, phase in enumerate(phases) if phase.name == "prefill")
    phases[index] = phases[index]._replace(end=1.5 * phases[index].end)
    return run


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        (counted_twice, "do not partition its time"),
        (forgotten_power, "is the integral of power"),
        (unread_layer, "in which it is read once each"),
        (faster_than_memory, "faster than the memory"),
        (overlapping_phases, "phases prefill and decode overlap"),
    ],
)
def test_a_trace_that_breaks_a_law_is_found(fault: Callable[[Run], Run], law: str) -> None:
    run = decoded()
    values = values_of(run)
    broken = [*trace_laws.broken_laws(*fault(run), values)]
    assert any(law in sentence for sentence in broken), broken
