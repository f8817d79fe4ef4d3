"""Progress of a sweep: what its notes say, and what the screen shows."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from repro.experiments.progress import Watcher
from repro.experiments.summaries.notes import Note, in_words
from repro.experiments.sweep import with_reason
from repro.records.provenance import count_layers, counting_layers

METHODS = ("std", "lever", "edgellm", "draft")


def ended(method: str, seconds: float, state: str = "done") -> Note:
    return Note("", {"method": method}, state, seconds)


def watching(terminal: bool = False) -> tuple[Watcher, io.StringIO]:
    """A sweep of four methods."""
    out = io.StringIO()
    watched = Watcher(Console(file=out, force_terminal=terminal, width=100, color_system=None))
    for method in METHODS:
        watched.add({"method": method, "device": "OnePlus 12"})
    return watched, out


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.052, "0.05 s"), (4.4, "4 s"), (600, "10 min"), (9000, "2.5 h")]
)
def test_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_a_line_at_each_cell_s_end() -> None:
    watched, out = watching()
    with watched.on_screen():
        watched.finish(0, ended("std", 10.0))
        watched.tell(1, "answering", 1, 4)
        watched.finish(1, ended("lever", 8.0, "failed"))
    assert out.getvalue().splitlines() == [
        "1 of 4 cells, std done in 10 s",
        "2 of 4 cells, lever failed in 8 s",
    ]


def test_cells_done_before_are_counted_without_a_line() -> None:
    watched, out = watching()
    with watched.on_screen():
        for number in range(3):
            watched.finish(number, ended(METHODS[number], 0.0, "cached"))
        watched.finish(3, ended("draft", 5.0))
    assert out.getvalue().splitlines() == ["4 of 4 cells, draft done in 5 s"]


def test_cells_are_named_by_what_differs() -> None:
    watched = Watcher()
    for device in ("OnePlus 12", "Xiaomi 14"):
        watched.add({"method": "lever", "device": device, "dataset": "humaneval"})
    assert [watched.name(0), watched.name(1)] == ["OnePlus 12", "Xiaomi 14"]
    assert watched.label_names() == ["method", "device", "dataset"]
    one = Watcher()
    one.add({"method": "lever"})
    assert one.name(0) == "lever"
    one.add({"method": "lever", "alpha": "0.5"})
    assert [one.name(0), one.name(1)] == ["lever", "0.5"]


def test_bars_show_all_cells_and_each_running_one() -> None:
    watched, out = watching(terminal=True)
    with watched.on_screen():
        watched.finish(0, ended("std", 10.0))
        watched.tell(1)
        watched.tell(1, "answering", 1, 4)
        watched.finish(1, ended("lever", 4.0))
    text = out.getvalue()
    assert "std done in 10 s" in text
    assert "lever done in 4 s" in text


def test_a_stage_says_why_it_takes_long() -> None:
    """Once something was computed that is in no cache; a stage that says so itself is left as it is."""
    said: list[str] = []
    with counting_layers() as count:
        tell = with_reason(lambda stage, done, total: said.append(stage), count)
        tell("answering", 0, 2)
        count_layers()
        tell("answering", 2, 2)
        tell("computing texts in shards", 2, 2)
    new = "answering, computing what neither cache nor pack has,"
    assert said == ["answering", new, "computing texts in shards"]
