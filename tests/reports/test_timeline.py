"""Timelines: what is kept of one beside a table, which lane shows which span, what the picture follows."""

import csv
import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from invented_tables import built, column, table_spec
from perfetto_rule import dropped
from records import record
from repro.core.errors import InputError
from repro.core.typed import typed
from repro.device.timeline import Level, TimelinePart, chrome
from repro.device.trace import Phase, Span, Trace
from repro.experiments.sweep import Sweep
from repro.experiments.tables import Asked
from repro.records.record import Record
from repro.reports.figures.excerpt import Block, excerpt, lanes, spans_of, windows_of
from repro.reports.figures.timeline import write_timeline
from repro.reports.spec.spec import LaneSpec, TimelineSpec, WindowSpec
from tiny_project import write_project

SPANS = [
    ("flash", "target load 0", 0.0, 0.9),
    ("gpu", "target head", 0.9, 1.0),
    ("gpu", "draft layers 0-1", 1.0, 1.25),
    ("gpu", "target layer 0", 1.25, 1.5),
    ("flash", "target load 1", 1.25, 2.0),
    ("gpu", "draft layers 0-1", 1.5, 1.75),
    ("gpu", "target layer 1", 2.0, 2.25),
    ("flash", "target load 0", 2.25, 2.75),
    ("gpu", "draft layers 0-1", 2.25, 2.5),
    ("gpu", "target layer 0", 2.75, 3.0),
    ("gpu", "draft layers 0-1", 4.0, 4.5),
]
TRACE = chrome(
    Trace(
        spans=[Span(on, "x", name, start, end, 1, 0.0, 0.0, 0.0) for on, name, start, end in SPANS],
        phases=[Phase("decode", 1.0, 3.0)],
    ),
    "edgellm on board",
    [
        TimelinePart(Level.REQUEST, "request a", 0.0, 3.0),
        TimelinePart(Level.ROUND, "round 0", 1.0, 2.25),
        TimelinePart(Level.PASS, "target pass", 1.25, 2.25, role="target"),
    ],
)
ROUNDS = [
    {"request": r, "round": i, "start": s, "end": e, "drafted": 2, "accepted": i, "emitted": i + 1}
    for r, i, s, e in (("a", 0, 1.0, 2.25), ("a", 1, 2.25, 3.0), ("b", 0, 4.0, 5.0))
]
SPEC: dict[str, Any] = {
    "lanes": [
        {"name": "Flash", "spans": ["target load"]},
        {"name": "Target", "spans": ["target"]},
        {"name": "Draft", "spans": ["draft"], "during": "Target"},
    ],
    "windows": [{"first": 0, "last": 1, "title": "(a)"}],
    "where": {"method": "edgellm"},
}


LANES = [typed(LaneSpec, lane, "lane") for lane in SPEC["lanes"]]


def kept(*windows: tuple[int, int], key: str = "k") -> str:
    return excerpt(TRACE, ROUNDS, [WindowSpec(*window) for window in windows], key)


def test_an_excerpt_holds_what_touches_its_windows_and_their_rounds() -> None:
    content = json.loads(kept((1, 1)))
    rows = spans_of(kept((1, 1)))
    assert [(s.name, s.start, s.end) for s in rows["gpu"]] == [
        ("draft layers 0-1", 2.25, 2.5),
        ("target layer 0", 2.75, 3.0),
    ]
    assert [s.name for s in rows["flash"]] == ["target load 0"]
    assert [(s.name, s.start, s.end, s.args["accepted"]) for s in rows["rounds"]] == [("1", 2.25, 3.0, 1)]
    assert [s.name for s in rows["requests"]] == ["decode"]
    assert dropped(content["traceEvents"]) == []
    assert content["otherData"] == {"key": "k", "windows": [[1, 1]]}
    assert content["displayTimeUnit"] == "ms"


DRAFTED = [(8, 0), (4, 4), (0, 0), (4, 1), (4, 2), (4, 3)]
"""Drafted and accepted tokens of a request's rounds: 4 and 1 2/3 on average."""


def test_a_typical_stretch_is_the_one_nearest_to_the_mean_of_its_request() -> None:
    rounds = [
        {"request": "a", "round": i, "start": i / 2, "end": i / 2 + 0.5, "drafted": d, "accepted": a}
        for i, (d, a) in enumerate(DRAFTED)
    ]
    rounds.append({**rounds[0], "request": "b", "drafted": 100})
    text = excerpt(TRACE, rounds, [WindowSpec(typical=2, title="two")], "k")
    assert json.loads(text)["otherData"]["windows"] == [[3, 4]]
    (window,) = windows_of(text, [WindowSpec(typical=2, title="two")], rounds)
    assert (window.first, window.last) == (3, 4)
    assert window.title == "two, mean of the request's 6 rounds: 1.7 of 4.0 accepted"
    (plain,) = windows_of(text, [WindowSpec(3, 3)], rounds)
    assert (plain.first, plain.last, plain.title) == (3, 3, "")


def test_a_lane_shows_its_spans_and_tells_apart_those_that_another_has_begun_before() -> None:
    """The prefill's head only touches round 0: the draft's first row there is not told apart by it."""
    assert lanes(kept((0, 1)), LANES) == [
        Block("Flash", "target load 1", 0, 1.25, 2.0, False),
        Block("Flash", "target load 0", 1, 2.25, 2.75, False),
        Block("Target", "target layer 0", 0, 1.25, 1.5, False),
        Block("Target", "target layer 1", 0, 2.0, 2.25, False),
        Block("Target", "target layer 0", 1, 2.75, 3.0, False),
        Block("Draft", "draft layers 0-1", 0, 1.0, 1.25, False),
        Block("Draft", "draft layers 0-1", 0, 1.5, 1.75, True),
        Block("Draft", "draft layers 0-1", 1, 2.25, 2.5, False),
    ]


@pytest.fixture
def stored(tmp_path: Path) -> Record:
    """A finished cell whose timeline lies in a file."""
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(TRACE.encode()))
    return record("edgellm", {"calls": 2}, trace=path.name)


def written(of: Record, folder: Path, **changes: Any) -> dict[str, Path]:
    timeline = typed(TimelineSpec, {**SPEC, **changes}, "timeline")
    table = built([of], [column("calls")], experiment="fig21")
    folder.mkdir(exist_ok=True)
    return write_timeline(table, timeline, [of, record("std", {})], ROUNDS, folder, folder.parent)


def test_files_are_the_same_every_time_also_when_the_timeline_itself_is_gone(
    stored: Record, tmp_path: Path
) -> None:
    files = written(stored, tmp_path / "a")
    assert [path.name for path in files.values()] == [
        f"timeline.{end}" for end in ("json", "csv", "png", "pdf")
    ]
    assert files["diagram"].read_bytes().startswith(b"\x89PNG")
    before = [path.read_bytes() for path in files.values()]
    (tmp_path / str(stored.provenance.trace)).unlink()
    assert [path.read_bytes() for path in written(stored, tmp_path / "a").values()] == before
    with pytest.raises(InputError, match=r"timeline of fig21 is gone; make it again with sweep=force"):
        written(replace(stored, key="0" * 64), tmp_path / "a")
    with pytest.raises(InputError, match="is gone"):
        written(stored, tmp_path / "c")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"where": {"method": "sp"}}, "finds 0 finished cells, not one"),
        ({"where": {}}, "finds 2 finished cells, not one"),
        ({"windows": []}, r"timeline\.windows is \[\]; it must be a list that is not empty"),
        ({"lanes": [{"name": "D", "spans": ["d"], "during": "T"}]}, "in lane 'D' there is no lane 'T'"),
        (
            {"lanes": [*SPEC["lanes"], {"name": "NPU", "spans": ["npu"]}]},
            "lane 'NPU' shows no span; spans begin with: decode, draft layers, t",
        ),
        *(
            (
                {"windows": [{"first": first, "last": last}]},
                f"window {first} to {last} is none of rounds 0 to 1",
            )
            for first, last in ((0, 2), (2, 2), (-1, 0), (1, 0))
        ),
        (
            {"windows": [{"first": 1, "last": 2, "typical": 2}]},
            "either rounds `first` to `last`, or a number",
        ),
        ({"windows": [{"part": 0}]}, "part is 0; it must be a number above 0 and at most 1"),
    ],
)
def test_bad_input(change: dict[str, Any], sentence: str, stored: Record, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        written(stored, tmp_path / "a", **change)


def test_a_sweep_writes_it_and_one_that_cannot_be_made_costs_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write_project(tmp_path)
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "cache"))
    notes = [project.cell("experiment=quickstart", f"method={method}") for method in ("std", "edgellm")]
    columns = [column("target_calls")]
    section = {"title": "T", "rows": {"by": ["method"]}, "columns": columns, "timeline": SPEC}
    spec = table_spec("fig21", section)
    files = project.sweep().finish(Asked("fig21"), spec, notes)
    spans = list(csv.DictReader(io.StringIO(files["spans"].read_text(encoding="utf-8"))))
    assert {row["lane"] for row in spans} == {"Flash", "Target", "Draft"}
    assert {row["round"] for row in spans} == {"0", "1"}
    screen = io.StringIO()
    sweep = Sweep(project.config(), Console(file=screen, width=200))
    files = sweep.finish(Asked("fig22"), spec, notes[:1])
    assert "No timeline: the timeline's `where` {'method': 'edgellm'} finds 0 finished" in screen.getvalue()
    assert files["md"].exists()
    assert "excerpt" not in files


def test_round_minus_1_is_the_prefill_and_a_part_of_it_can_be_shown() -> None:
    spans = [Span("npu", "x", f"target npu {i}", i / 2, i / 2 + 0.5, 1, 0.0, 0.0, 0.0) for i in range(2)]
    phases = [Phase("prefill", 0.0, 0.1), Phase("prefill", 0.1, 1.2), Phase("decode", 1.2, 3.0)]
    trace = chrome(Trace(spans=spans, phases=phases), "npu")
    lane = [LaneSpec("NPU", ("target npu",))]
    whole = lanes(excerpt(trace, ROUNDS, [WindowSpec(-1, -1)], "k"), lane)
    assert [(block.start, block.round) for block in whole] == [(0.0, -1), (0.5, -1)]
    both = excerpt(trace, ROUNDS, [WindowSpec(-1, 0)], "k")
    assert dropped(json.loads(both)["traceEvents"]) == [], "the first round begins before the prefill ends"
    part = lanes(excerpt(trace, ROUNDS, [WindowSpec(-1, -1, part=0.4)], "k"), lane)
    assert [block.start for block in part] == [0.0]
