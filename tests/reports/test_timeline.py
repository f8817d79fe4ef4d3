"""Timelines: what is kept of one beside a table, which lane shows which span, what the picture follows."""

import gzip
import io
import json
from collections.abc import Mapping, Sequence
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
from repro.records.record import Record, Round
from repro.reports.figures.timeline import windows_of, write_timeline
from repro.reports.spec.spec import TimelineSpec, WindowSpec
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


def stored(folder: Path, trace: str = TRACE) -> Record:
    """A finished cell whose timeline lies in a file."""
    path = folder / "trace.json.gz"
    path.write_bytes(gzip.compress(trace.encode()))
    return record("edgellm", {"calls": 2}, trace=path.name)


def written(of: Record, folder: Path, rounds: Sequence[Round] = ROUNDS, **changes: Any) -> dict[str, Path]:
    """The files of a timeline with these changes, in a folder below that of the cell's own."""
    timeline = typed(TimelineSpec, {**SPEC, **changes}, "timeline")
    table = built([of], [column("calls")], experiment="fig21")
    folder.mkdir(exist_ok=True)
    return write_timeline(table, timeline, [of, record("std", {})], rounds, folder, folder.parent)


def spans(files: Mapping[str, Path]) -> list[str]:
    """The lines of the file of spans, below its headings."""
    return files["spans"].read_text(encoding="utf-8").splitlines()[1:]


def test_a_lane_shows_its_spans_and_tells_apart_those_that_another_has_begun_before(tmp_path: Path) -> None:
    """The prefill's head only touches round 0: the draft's first row there is not told apart by it."""
    assert spans(written(stored(tmp_path), tmp_path / "a")) == [
        "Flash,target load 1,0,1.25,2.0,0",
        "Flash,target load 0,1,2.25,2.75,0",
        "Target,target layer 0,0,1.25,1.5,0",
        "Target,target layer 1,0,2.0,2.25,0",
        "Target,target layer 0,1,2.75,3.0,0",
        "Draft,draft layers 0-1,0,1.0,1.25,0",
        "Draft,draft layers 0-1,0,1.5,1.75,1",
        "Draft,draft layers 0-1,1,2.25,2.5,0",
    ]


def test_an_excerpt_holds_what_touches_its_windows_and_their_rounds(tmp_path: Path) -> None:
    record = stored(tmp_path)
    files = written(record, tmp_path / "a", windows=[{"first": 1, "last": 1}])
    content = json.loads(files["excerpt"].read_text(encoding="utf-8"))
    events = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert [(event["name"], event["ts"] / 1e6) for event in events] == [
        ("decode", 1.0),
        ("target load 0", 2.25),
        ("draft layers 0-1", 2.25),
        ("target layer 0", 2.75),
        ("1", 2.25),
    ]
    assert events[-1]["args"]["accepted"] == 1
    assert dropped(content["traceEvents"]) == []
    assert content["otherData"] == {"key": record.key, "windows": [[1, 1]]}


def test_a_typical_stretch_is_the_one_nearest_to_the_mean_of_its_request(tmp_path: Path) -> None:
    """Of rounds with 4 drafted and 1 2/3 accepted tokens on average."""
    drafted = [(8, 0), (4, 4), (0, 0), (4, 1), (4, 2), (4, 3)]
    rounds = [
        {"request": "a", "round": i, "start": i / 2, "end": i / 2 + 0.5, "drafted": d, "accepted": a}
        for i, (d, a) in enumerate(drafted)
    ]
    rounds.append({**rounds[0], "request": "b", "drafted": 100})
    two = {"typical": 2, "title": "two"}
    files = written(stored(tmp_path), tmp_path / "a", rounds, windows=[two], lanes=SPEC["lanes"][:1])
    text = files["excerpt"].read_text(encoding="utf-8")
    assert json.loads(text)["otherData"]["windows"] == [[3, 4]]
    (window,) = windows_of(text, [typed(WindowSpec, two, "window")], rounds)
    assert window.title == "two, mean of the request's 6 rounds: 1.7 of 4.0 accepted"


@pytest.mark.parametrize(
    ("window", "shown"),
    [({"part": 1}, ["0.0", "0.5"]), ({"part": 0.4}, ["0.0"]), ({"last": 0}, ["0.0", "0.5"])],
)
def test_round_minus_1_is_the_prefill_and_a_part_of_it_can_be_shown(
    window: dict[str, Any], shown: list[str], tmp_path: Path
) -> None:
    """The first round begins before the prefill ends."""
    passes = [Span("npu", "x", f"target npu {i}", i / 2, i / 2 + 0.5, 1, 0.0, 0.0, 0.0) for i in range(2)]
    phases = [Phase("prefill", 0.0, 0.1), Phase("prefill", 0.1, 1.2), Phase("decode", 1.2, 3.0)]
    record = stored(tmp_path, chrome(Trace(spans=passes, phases=phases), "npu"))
    windows, lane = [{"first": -1, "last": -1, **window}], {"name": "NPU", "spans": ["target npu"]}
    files = written(record, tmp_path / "a", windows=windows, lanes=[lane])
    assert [line.split(",")[2:4] for line in spans(files)] == [["-1", start] for start in shown]
    assert dropped(json.loads(files["excerpt"].read_text(encoding="utf-8"))["traceEvents"]) == []


def test_files_are_the_same_every_time_also_when_the_timeline_itself_is_gone(tmp_path: Path) -> None:
    record = stored(tmp_path)
    files = written(record, tmp_path / "a")
    assert [path.suffix for path in files.values()] == [".json", ".csv", ".png", ".pdf"]
    before = [path.read_bytes() for path in files.values()]
    (tmp_path / str(record.provenance.trace)).unlink()
    assert [path.read_bytes() for path in written(record, tmp_path / "a").values()] == before
    for other, folder in ((replace(record, key="0" * 64), "a"), (record, "c")):
        with pytest.raises(InputError, match=r"timeline of fig21 is gone; make it again with sweep=force"):
            written(other, tmp_path / folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"where": {"method": "sp"}}, "finds 0 finished cells, not one"),
        ({"where": {}}, "finds 2 finished cells, not one"),
        ({"windows": []}, r"timeline\.windows is \[\]; it must be a list that is not empty"),
        ({"lanes": [{"name": "D", "spans": ["d"], "during": "T"}]}, "in lane 'D' there is no lane 'T'"),
        (
            {"lanes": [{"name": "NPU", "spans": ["npu"]}]},
            "lane 'NPU' shows no span; spans begin with: decode",
        ),
        *(
            ({"windows": [{"first": a, "last": b}]}, f"window {a} to {b} is none of rounds 0 to 1")
            for a, b in ((0, 2), (2, 2), (-1, 0), (1, 0))
        ),
        (
            {"windows": [{"first": 1, "last": 2, "typical": 2}]},
            "either rounds `first` to `last`, or a number",
        ),
        ({"windows": [{"part": 0}]}, "part is 0; it must be a number above 0 and at most 1"),
    ],
)
def test_a_timeline_that_cannot_be_drawn_is_said(
    change: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=sentence):
        written(stored(tmp_path), tmp_path / "a", **change)


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
    lines = [line.split(",") for line in spans(files)]
    assert {lane for lane, *_ in lines} == {"Flash", "Target", "Draft"}
    assert {number for _, _, number, *_ in lines} == {"0", "1"}
    screen = io.StringIO()
    sweep = Sweep(project.config(), Console(file=screen, width=200))
    files = sweep.finish(Asked("fig22"), spec, notes[:1])
    assert "No timeline: the timeline's `where` {'method': 'edgellm'} finds 0 finished" in screen.getvalue()
    assert files["md"].exists()
    assert "excerpt" not in files
