"""Progress of a sweep: what its notes say, how long the rest takes, and what the screen shows."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from repro.experiments.computing import with_reason
from repro.experiments.progress import timings
from repro.experiments.progress.display import Bars, Display, Lines
from repro.experiments.progress.notes import Note, Running
from repro.experiments.progress.plan import State, SweepPlan, in_words
from repro.experiments.progress.timings import CellWork, Estimates, Timing
from repro.experiments.progress.watch import Watcher
from repro.records.effort import count, counting

WORK = CellWork("lever", "Qwen3-8B", "humaneval", "emulated on cpu", 100)
METHODS = ("std", "lever", "edgellm", "draft")


def done(method: str, seconds: float, state: str = "done") -> Note:
    return Note("", {"method": method}, state, seconds)


def state(
    finished: Mapping[int, Note],
    doing: Mapping[int, Running] | None = None,
    elapsed: Mapping[int, float] | None = None,
    known: tuple[Timing, ...] = (),
) -> State:
    plan = SweepPlan(known)
    for method in METHODS:
        plan.add(replace(WORK, method=method), {"method": method, "device": "OnePlus 12"})
    for number, note in finished.items():
        plan.finish(number, note)
    doing = doing or {}
    return State(plan, doing, {**dict.fromkeys(doing, 0.0), **(elapsed or {})})


def expected(work: CellWork, timings: list[Timing]) -> float | None:
    return Estimates(timings).expected(work)


class TestExpected:
    def test_cells_that_read_a_cache_do_not_count(self) -> None:
        ran, read = Timing(WORK, 66.0, 1.0), Timing(WORK, 0.1, 0.0)
        assert expected(WORK, [read, read, read, ran]) == pytest.approx(66.0)
        assert expected(WORK, [read]) is None

    def test_half_computed_takes_twice_as_long(self) -> None:
        assert expected(WORK, [Timing(WORK, 30.0, 0.5)]) == pytest.approx(60.0)

    def test_it_is_of_the_method_and_scaled_by_amount(self) -> None:
        other = Timing(replace(WORK, method="std"), 1.0, 1.0)
        assert expected(replace(WORK, amount=300), [other, Timing(WORK, 10.0, 1.0)]) == pytest.approx(30.0)
        assert expected(WORK, [other]) is None
        assert expected(WORK, [Timing(replace(WORK, clock="Local CPU"), 9.0, 1.0)]) is None

    def test_the_same_model_and_dataset_come_first(self) -> None:
        other = Timing(replace(WORK, dataset="gsm8k"), 50.0, 1.0)
        assert expected(WORK, [other, other, Timing(WORK, 10.0, 1.0)]) == pytest.approx(10.0)
        assert expected(WORK, [other]) == pytest.approx(50.0)

    def test_the_nearest_amounts_count(self) -> None:
        small = [Timing(replace(WORK, amount=1), 5.0, 1.0)] * 9
        near = [Timing(WORK, 10.0, 1.0)] * timings.NEAREST
        assert expected(WORK, [*small, *near]) == pytest.approx(10.0)


def test_timings_come_back_and_a_torn_line_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REPRO_CACHE", str(tmp_path))
    assert timings.read() == []
    first, second = Timing(WORK, 1.0, 1.0), Timing(WORK, 2.0, 0.5)
    timings.keep(first)
    timings.keep(second)
    path = tmp_path / "timings.jsonl"
    path.write_text(path.read_text(encoding="utf-8") + '{"work": {"met', encoding="utf-8")
    assert timings.read() == [second, first]


class TestTimeLeft:
    def test_nothing_is_known(self) -> None:
        assert state({}).seconds_left is None
        assert state({0: done("std", 0.0, "cached")}).seconds_left is None, "a cached cell tells nothing"

    def test_from_the_cells_that_ran(self) -> None:
        assert state({0: done("std", 10.0)}).seconds_left == pytest.approx(30.0)
        both = {0: done("std", 10.0), 1: done("lever", 0.0, "cached")}
        assert state(both).seconds_left == pytest.approx(20.0)

    def test_what_is_known_of_a_method_goes_before(self) -> None:
        known = (Timing(WORK, 60.0, 1.0),)
        assert state({0: done("std", 10.0)}, known=known).seconds_left == pytest.approx(60.0 + 2 * 10.0)

    def test_cells_that_find_what_others_computed_say_it_of_their_method(self) -> None:
        plan = SweepPlan([Timing(WORK, 3600.0, 1.0)])
        for target in ("Qwen3-4B", "Qwen3-8B", "Qwen3-14B"):
            plan.add(replace(WORK, target=target), {"method": "lever", "target": target})
        plan.add(replace(WORK, method="std"), {"method": "std"})
        assert State(plan, {}, {}).seconds_left == pytest.approx(4 * 3600.0)
        plan.finish(0, done("lever", 18.0))
        assert State(plan, {}, {}).seconds_left == pytest.approx(2 * 18.0 + 18.0)
        assert [plan.expected(number) for number in (0, 1, 3)] == [18.0, pytest.approx(18.0), None]

    def test_a_running_cell_is_partly_done(self) -> None:
        one = {1: Running("answering", 1, 4)}
        known = (Timing(WORK, 10.0, 1.0),)
        assert state({0: done("std", 10.0)}, one, {1: 4.0}, known).seconds_left == pytest.approx(6.0 + 20.0)

    def test_one_that_takes_longer_is_read_from_its_bar(self) -> None:
        one = {1: Running("answering", 1, 4)}
        known = (Timing(WORK, 10.0, 1.0),)
        assert state({0: done("std", 10.0)}, one, {1: 20.0}, known).seconds_left == pytest.approx(60.0 + 20.0)

    def test_two_at_a_time_take_half(self) -> None:
        two = {1: Running("answering"), 2: Running("answering")}
        assert state({0: done("std", 10.0)}, two, {1: 0.0, 2: 0.0}).seconds_left == pytest.approx(15.0)

    @pytest.mark.parametrize(
        ("seconds", "words"), [(0.052, "0.05 s"), (4.4, "4 s"), (600, "10 min"), (9000, "2.5 h")]
    )
    def test_in_words(self, seconds: float, words: str) -> None:
        assert in_words(seconds) == words


def lines(*states: tuple[State, float]) -> list[str]:
    out = io.StringIO()
    shown = Lines(Console(file=out))
    for one, now in states:
        shown.show(one, now)
    shown.close()
    return out.getvalue().splitlines()


class TestLines:
    def test_a_line_at_each_cell_s_end(self) -> None:
        first = {0: done("std", 10.0)}
        second = first | {1: done("lever", 8.0, "failed")}
        assert lines((state({}), 0.0), (state(first), 1.0), (state(first), 2.0), (state(second), 3.0)) == [
            "1 of 4 cells, std done in 10 s, about 30 s left",
            "2 of 4 cells, lever failed in 8 s, about 20 s left",
        ]

    def test_a_line_a_minute(self) -> None:
        one = state({}, {1: Running("answering", 1, 4)}, {1: 50.0})
        told = lines(*((one, float(now)) for now in range(0, 130, 10)))
        assert told == ["0 of 4 cells, lever answering 1/4, about 12 min left"] * 2

    def test_cells_done_before_are_one_line(self) -> None:
        cached = {n: done(METHODS[n], 0.0, "cached") for n in range(3)}
        assert lines((state(cached), 0.0), (state(cached | {3: done("draft", 5.0)}), 1.0)) == [
            "4 of 4 cells, 3 done before, draft done in 5 s"
        ]
        assert lines((state(cached), 0.0), (state(cached), 59.0)) == []

    def test_many_that_end_at_once_are_counted(self) -> None:
        plan = SweepPlan()
        for number in range(40):
            plan.add(WORK, {"method": "lever", "seed": str(number)})
            plan.finish(number, done("lever", 0.1, "failed" if number % 4 == 3 else "done"))
        assert lines((State(plan, {}, {}), 0.0)) == ["40 of 40 cells, 30 done, 10 failed"]

    def test_cells_are_named_by_what_differs(self) -> None:
        plan = SweepPlan()
        for device in ("OnePlus 12", "Xiaomi 14"):
            plan.add(WORK, {"method": "lever", "device": device, "dataset": "humaneval"})
        assert [plan.name(0), plan.name(1)] == ["OnePlus 12", "Xiaomi 14"]
        alone = SweepPlan()
        alone.add(WORK, {"method": "lever"})
        assert alone.name(0) == "lever"

    def test_a_label_that_some_cells_lack_names_them(self) -> None:
        plan = SweepPlan()
        plan.add(WORK, {"method": "lever"})
        plan.add(WORK, {"method": "lever", "alpha": "0.5"})
        assert [plan.name(0), plan.name(1)] == ["lever", "0.5"]


def test_bars_show_all_cells_and_each_running_one() -> None:
    out = io.StringIO()
    shown: Display = Bars(Console(file=out, force_terminal=True, width=100, color_system=None))
    shown.show(state({0: done("std", 10.0)}, {1: Running("answering", 1, 4)}, {1: 4.0}), 0.0)
    shown.show(state({n: done(METHODS[n], 10.0) for n in range(4)}), 1.0)
    shown.close()
    text = out.getvalue()
    assert "std done in 10 s" in text
    assert "draft done in 10 s" in text


class TestWatcher:
    def test_the_driver_tells_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "cache"))
        watcher = Watcher()
        for method in METHODS:
            watcher.plan.add(replace(WORK, method=method), {"method": method})
        assert watcher.look(0.0).plan.finished == {}
        watcher.finish(0, done("std", 10.0))
        with watcher.running(1) as tell:
            tell("answering", 1, 4)
            assert watcher.look(1.0).running == {1: Running("answering", 1, 4)}
        watcher.finish(1, done("lever", 4.0))
        found = watcher.look(2.0)
        assert found.plan.finished == {0: done("std", 10.0), 1: done("lever", 4.0)}
        assert (found.running, found.elapsed) == ({}, {})
        watcher.tell(2)
        watcher.leave(2)
        assert watcher.look(3.0).running == {}

    def test_closing_shows_the_last_state(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REPRO_CACHE", str(tmp_path / "cache"))
        out = io.StringIO()
        watcher = Watcher(Lines(Console(file=out)))
        watcher.plan.add(WORK, {"method": "lever"})
        watcher.start()
        watcher.finish(0, done("lever", 4.0))
        watcher.close()
        assert out.getvalue() == "lever done in 4 s\n"


def test_a_stage_is_told_after_some_seconds_and_a_new_one_again() -> None:
    seen = ((0, "reading"), (4, "reading"), (6, "reading"), (30, "reading"), (31, "answering"))
    said = lines(*((state({}, {1: Running(stage, 1, 4)}, {1: at}), float(at)) for at, stage in seen))
    assert [line.split(", ")[1] for line in said] == ["lever reading 1/4", "lever answering 1/4"]


def test_a_stage_says_why_it_takes_long() -> None:
    """Once something was computed that is in no cache; a stage that says so itself is left as it is."""
    said: list[str] = []
    with counting() as effort:
        tell = with_reason(lambda stage, done, total: said.append(stage), effort)
        tell("answering", 0, 2)
        count(found=["a"])
        tell("answering", 1, 2)
        count(computed=["b"])
        tell("answering", 2, 2)
        tell("computing texts in shards", 2, 2)
    new = "answering, computing what neither cache nor pack has,"
    assert said == ["answering", "answering", new, "computing texts in shards"]
