"""What passes and drafts amount to, from invented sessions, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import records
from invented_answers import answer
from repro.device.emulated import EmulatedDevice
from repro.device.op import CPU
from repro.device.trace import Span, Trace
from repro.methods.base import Generation, Request, Round
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Pass, Session
from repro.reports.intervals.bootstrap import figure
from repro.reports.intervals.rounds import totals, with_interval
from repro.scenarios.generation import figures
from tiny import MODEL_COST, toy


def passed(*spans: tuple[float, float, float]) -> Session:
    """A session whose passes had these starts, ends and seconds of loading, and dropped 1 of 4 rows."""
    session = Session(Engine("m", EmulatedDevice(toy()), MODEL_COST, NoNetwork(), RESIDENT))
    session.passes += [Pass(4, start, end, loading, 3) for start, end, loading in spans]
    return session


def test_what_passes_took_and_how_much_drafting_they_hid() -> None:
    made = [answer(3, 10.0, (1, 0, 2, 10.0, 20.0))]
    target = passed((0.0, 9.0, 9.0), (12.0, 18.0, 4.0))
    draft = passed((10.0, 11.0, 0.0), (11.0, 12.0, 0.0), (13.0, 16.0, 0.0), (17.0, 19.0, 0.0))
    assert figures.passes(made, {"target": target, "draft": draft}) == {
        "target_pass": 6.0,
        "target_loading": 4.0,
        "target_computing": 2.0,
        "draft_pass": 1.0,
        "provisional_pass": 2.5,
        "draft_seconds": 7.0,
        "draft_hidden": 4 / 7,
        "rows_kept": 0.75,
    }
    assert set(figures.passes(made, {}).values()) == {None, 0.0}


def test_intervals_of_passes_are_those_of_what_each_answer_kept() -> None:
    """Five answers, one of which dropped more rows and waited less: its own sums give the cell's figures."""
    made = [answer(3, 10.0 * i, (4, 1, 2, 10.0 * i, 10.0 * i + 9)) for i in range(5)]
    made = [replace(g, request=Request(f"r/{i}", (1,), 3)) for i, g in enumerate(made)]
    target = passed(*((10.0 * i + 2, 10.0 * i + 8, 1.0 + i) for i in range(5)))
    draft = passed(*((10.0 * i + start, 10.0 * i + start + 1.5, 0.0) for i in range(5) for start in (0, 7)))
    sessions = {"target": target, "draft": draft}
    spans = [Span(CPU, "head", "target head", 10.0 * i + 7, 10.0 * i + 8, 4, 0.0, 0.0, 0.0) for i in range(5)]
    trace = Trace(0.0, spans)
    values = {**figures.passes(made, sessions), **figures.projecting(made, trace)}
    each = figures.by_answer(made, sessions, trace)
    lines = [{"request": g.request.id, **own} for g, own in zip(made, each, strict=True)]
    record = records.record("edgellm", values)
    for name, own in totals(record, figures.round_rows(made), lines).items():
        assert figure(own) == pytest.approx(values[name]), name
    assert set(totals(record, figures.round_rows(made), lines)) == set(values)
    low, high = with_interval(record, figures.round_rows(made), lines).uncertainty["target_loading"]  # type: ignore[misc]
    assert 1.0 < low < 3.0 < high < 5.0


def test_errors_are_verifications_that_stop_before_the_end_of_their_branch() -> None:
    rounds = [Round(7, 8, a, a + 1, reach, "", 0, 1) for a, reach in ((3, 4), (4, 4), (0, 2), (5, 5))]
    answer = Generation(Request("r", (1,), 99), rounds=[*rounds, Round(2, 0, 2, 2, 2, "end", 1, 2)])
    assert figures.drafting([answer]) == {
        "drafted_per_call": 7.0,
        "error_rate": 0.5,
        "calls_per_error": 2.0,
        "drafted_per_error": 14.0,
        "useless_calls": 2,
    }
    assert figures.drafting([Generation(Request("r", (1,), 99))]) == {}
    dropped = Generation(Request("r", (1,), 99), rounds=[r._replace(possible=4) for r in rounds])
    assert figures.drafting([dropped])["retention"] == 12 / 16


def test_a_projection_is_wasted_on_rows_that_no_path_comes_to() -> None:
    """8 rows at once of which 2 are visited, then 3 one by one, all visited; other heads do not count."""
    made = [answer(9, 0.0, (8, 1, 2, 0.0, 10.0), (8, 2, 3, 10.0, 20.0))]

    def head(name: str, start: float, end: float, rows: int) -> Span:
        return Span(CPU, "head", name, start, end, rows, 0.0, 0.0, 0.0)

    spans = [head("draft head", 1.0, 2.0, 1), head("target head", 6.0, 10.0, 8)]
    spans += [head("target head", 17.0 + i, 18.0 + i, 1) for i in range(3)]
    spans.append(Span(CPU, "layer", "target layer 0", 10.0, 17.0, 8, 0.0, 0.0, 0.0))
    assert figures.projecting(made, Trace(0.0, spans)) == {"target_projection": 3.5, "target_wasted": 1.5}
    assert figures.projecting([answer(1, 0.0)], Trace(0.0, spans)) == {}
