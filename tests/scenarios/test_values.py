"""What passes and drafts amount to, from invented sessions, worked out by hand."""

from __future__ import annotations

from invented_answers import answer
from repro.device.emulated import EmulatedDevice
from repro.device.op import CPU
from repro.device.trace import Span, Trace
from repro.methods.base import Generation, Request, Round
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import RESIDENT
from repro.models.runtime.session import Pass, Session
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
