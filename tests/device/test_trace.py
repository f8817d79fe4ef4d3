"""What is read off a trace, against naive arithmetic."""

from hypothesis import given, settings
from hypothesis import strategies as st

from concurrency import most_at_once
from repro.device.trace import Span, Trace


def span(on: str, start: float, end: float, joules: float = 0.0) -> Span:
    return Span(on, "k", f"{on} {start}", start, end, 1, 0.0, 0.0, joules)


TRACE = Trace(0.5, [span("cpu", 0, 2, 4.0), span("npu", 1, 4, 9.0), span("cpu", 3, 5, 4.0)])


def test_busy_seconds_and_joules_of_a_window() -> None:
    assert [TRACE.busy("cpu"), TRACE.busy("cpu", 1, 4), TRACE.busy("npu", 0, 2), TRACE.busy("gpu")] == [
        4,
        2,
        1,
        0,
    ]
    assert TRACE.joules(0, 5) == 17 + 2.5
    assert TRACE.joules(1, 4) == 2 + 9 + 2 + 1.5
    assert Trace(None, TRACE.spans).joules(0, 5) is None


def test_overlapping_spans_are_busy_once() -> None:
    trace = Trace(0.0, [span("cpu", 0, 4), span("cpu", 1, 2), span("cpu", 3, 6), span("cpu", 8, 9)])
    assert trace.busy("cpu") == 7
    assert trace.busy("cpu", 3.5, 8.5) == 3


moments = st.integers(0, 20).map(float)
spans = st.lists(
    st.builds(
        lambda on, a, b: span(on, min(a, b), max(a, b)), st.sampled_from(["cpu", "npu"]), moments, moments
    )
)


@settings(deadline=None, derandomize=True)
@given(spans, moments, moments)
def test_a_window_is_what_a_walk_over_all_spans_finds(found: list[Span], a: float, b: float) -> None:
    trace, start, end = Trace(0.0, sorted(found, key=lambda s: s.end)), min(a, b), max(a, b)
    for on in (None, "cpu"):
        naive = [s for s in trace if s.end > start and s.start < end and on in (None, s.on)]
        assert list(trace.within(start, end, on)) == naive
    seconds = [
        t for t in range(int(start), int(end)) if any(s.start <= t < s.end for s in found if s.on == "cpu")
    ]
    assert trace.busy("cpu", start, end) == len(seconds)
    most = max((sum(s.start <= t < s.end for s in found) for t in range(21)), default=0)
    assert most_at_once(found) == most


def test_a_window_sees_spans_that_came_after_it_was_first_asked_for() -> None:
    trace = Trace(0.0, [span("cpu", 0, 1)])
    assert len(list(trace.within(0, 9))) == 1
    trace.spans.append(span("cpu", 1, 2))
    assert len(list(trace.within(0, 9))) == 2
