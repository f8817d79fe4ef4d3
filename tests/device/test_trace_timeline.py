"""A trace as Perfetto shows it: nothing overlaps in part, ops lie in passes, and counters add up."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from perfetto_rule import dropped
from repro import __file__ as package
from repro.device.timeline import Level, TimelinePart, chrome
from repro.device.trace import Phase, Span, Trace
from repro.methods.base import Generation, Request
from repro.scenarios.generation.scenario import shown_until
from tiny_runs import edgellm_timeline


def op(on: str, name: str, start: float, end: float, size: float = 0.0, joules: float = 0.0) -> Span:
    return Span(on, "k", name, start, end, 1, 0.0, size, joules)


def events(text: str) -> list[dict[str, Any]]:
    return list(json.loads(text)["traceEvents"])


def shown(text: str) -> dict[str, list[tuple[str, int, int]]]:
    """Slices by lane: name, start and duration."""
    found = events(text)
    names = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    lanes: dict[str, list[tuple[str, int, int]]] = {name: [] for name in names.values()}
    for e in found:
        if e["ph"] == "X":
            lanes[names[e["tid"]]].append((e["name"], e["ts"], e["dur"]))
    return lanes


def counter(text: str, name: str) -> list[tuple[int, float]]:
    return [(e["ts"], e["args"]["value"]) for e in events(text) if e["ph"] == "C" and e["name"] == name]


def test_requests_hold_phases_rounds_and_passes_and_a_pass_holds_its_ops() -> None:
    spans = [op("cpu", f"target layer {i}", 1 + i, 2 + i) for i in range(2)] + [op("cpu", "draft head", 3, 4)]
    parts = [
        TimelinePart(Level.REQUEST, "request a", 1, 5),
        TimelinePart(Level.ROUND, "round 0", 1, 4.5, {"drafted": 1}),
        TimelinePart(Level.PASS, "target pass", 1, 3, role="target"),
        TimelinePart(Level.PASS, "draft pass", 2.5, 4, role="draft"),
    ]
    text = chrome(Trace(0.0, spans, [Phase("load", 0, 1), Phase("decode", 1, 5)]), "p", parts)
    second = 1_000_000
    assert shown(text) == {
        "requests": [
            ("load", 0, second),
            ("request a", second, 4 * second),
            ("decode", second, 4 * second),
            ("round 0", second, 3_500_000),
            ("target pass", second, 2 * second),
        ],
        "meanwhile": [("draft pass", 2_500_000, 1_500_000)],
        "cpu": [
            ("target pass", second, 2 * second),
            ("target layer 0", second, second),
            ("target layer 1", 2 * second, second),
            ("draft pass", 3 * second, second),
            ("draft head", 3 * second, second),
        ],
    }


def test_a_pass_that_another_interrupts_is_shown_in_parts() -> None:
    spans = [
        *(op("cpu", "target layer 0", 0, 1), op("cpu", "draft layers 0-1", 1, 2)),
        *(op("cpu", "target layer 1", 2, 3), op("flash", "target load 2", 0, 3)),
    ]
    passes = [
        TimelinePart(Level.PASS, "target pass", 0, 3, role="target"),
        TimelinePart(Level.PASS, "draft pass", 0.5, 2.5, role="draft"),
    ]
    lanes = shown(chrome(Trace(0.0, spans), "p", passes))
    assert [name for name, _, _ in lanes["cpu"]] == [
        *("target pass", "target layer 0"),
        *("draft pass", "draft layers 0-1"),
        *("target pass", "target layer 1"),
    ]
    assert [name for name, _, _ in lanes["flash"]] == ["target load 2"], "a read is ahead of its pass"


def test_ops_that_run_side_by_side_get_lanes_of_their_own() -> None:
    spans = [op("flash", f"load {i}", i, i + 1.5) for i in range(3)]
    lanes = shown(chrome(Trace(0.0, spans), "p"))
    assert {name: [each[0] for each in lane] for name, lane in lanes.items()} == {
        "requests": [],
        "flash": ["load 0", "load 2"],
        "flash 2": ["load 1"],
    }


def test_counters_are_the_memory_traffic_and_power_of_each_moment() -> None:
    spans = [op("cpu", "a", 0, 2, 4e9, 6.0), op("flash", "b", 1, 2, 1e9, 1.0), op("cpu", "c", 2, 3, 2e9, 3.0)]
    text = chrome(Trace(0.5, spans), "p", memory=[(0.0, 1e9), (0.0, 3e9), (1.5, 2e9)])
    assert counter(text, "memory (GB)") == [(0, 3), (1_500_000, 2)]
    assert counter(text, "DRAM traffic (GB/s)") == [(0, 2), (1_000_000, 3), (2_000_000, 2), (3_000_000, 0)]
    assert counter(text, "power (W)") == [(0, 3.5), (1_000_000, 4.5), (2_000_000, 3.5), (3_000_000, 0.5)]
    assert counter(chrome(Trace(None, spans), "p"), "power (W)") == []


times = st.floats(0, 1e-4)
intervals = st.tuples(times, times).map(sorted)


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from(["cpu", "flash"]), st.sampled_from(["target", "draft"]), intervals)),
    st.lists(st.tuples(st.sampled_from(list(Level)[:4]), intervals)),
)
def test_perfetto_drops_nothing(ops: list[Any], parts: list[Any]) -> None:
    spans = [op(on, f"{role} {i}", a, b) for i, (on, role, (a, b)) in enumerate(ops)]
    given = [TimelinePart(level, f"part {i}", a, b, role="draft") for i, (level, (a, b)) in enumerate(parts)]
    found = events(chrome(Trace(0.0, spans), "p", given))
    assert dropped(found) == []
    slices = [e for e in found if e["ph"] == "X"]
    assert {s.name for s in spans} | {a.name for a in given} <= {e["name"] for e in slices}
    assert all(type(e["ts"]) is int and type(e["dur"]) is int and e["dur"] >= 0 for e in slices)


def test_a_run_with_streaming_and_provisional_drafts() -> None:
    text = edgellm_timeline()
    assert dropped(events(text)) == []
    lanes = shown(text)
    assert {"requests", "meanwhile", "flash"} <= set(lanes)
    names = {name.rstrip("0123456789 ") for name, _, _ in lanes["requests"]}
    assert {"request r", "prefill", "decode", "round", "target pass", "draft pass"} <= names
    assert {name for name, _, _ in lanes["meanwhile"]} == {"draft pass"}


def test_another_process_with_other_hashes_writes_the_same_bytes() -> None:
    here = Path(__file__).parents[1]
    paths = os.pathsep.join([str(Path(package).parents[1]), str(here)])
    code = "import tiny_runs; print(tiny_runs.edgellm_timeline(), end='')"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    assert run.stdout == edgellm_timeline()
    assert len(run.stdout) > 20_000


def test_a_long_run_shows_its_first_requests() -> None:
    """As many as the limit on ops allows, at least one, and nothing of the later ones."""
    ops = [op("cpu", f"op {i}", i / 10, i / 10 + 0.05) for i in range(30)]
    requests = [Generation(Request(str(i), (1,), 1), arrived=float(i), ended=i + 0.99) for i in range(3)]
    trace = Trace(spans=ops)
    for most, count in ((5, 1), (20, 2), (30, 3)):
        until, shown_ones = shown_until(requests, trace, most)
        assert shown_ones == count
        parts = [TimelinePart(Level.REQUEST, f"request {g.request.id}", g.arrived, g.ended) for g in requests]
        found = shown(chrome(trace, "a run", parts, (), until))
        assert [name for name, _, _ in found["requests"]] == [f"request {i}" for i in range(count)]
        assert len(found["cpu"]) == 10 * count
