"""Where curves cross: at the place that arithmetic gives, with the draws' interval, in words."""

from __future__ import annotations

import numpy as np
import pytest

from invented_tables import table_spec
from records import record
from repro.core.errors import InputError
from repro.reports.figures.figure import draw
from repro.reports.intervals.samples import Samples
from repro.reports.tables.build import build
from repro.reports.tables.crossings import SampledCurve, sentences
from repro.reports.tables.table import Table

PLACES = np.array([50.0, 60.0, 70.0, 80.0, 90.0])
SHIFTS = np.linspace(-4, 4, 1001)


def curve(name: str, values: np.ndarray, drawn: np.ndarray | None = None) -> SampledCurve:
    each = values[:, None].repeat(len(SHIFTS), axis=1) if drawn is None else drawn
    return SampledCurve(name, values, each)


def rising(crosses: float) -> np.ndarray:
    """A straight line that is 1 at a place."""
    return 1 + (PLACES - crosses) / 100


X = curve("Agreement", PLACES)
FLAT = curve("Flat", np.ones(5))


def test_a_crossing_is_where_the_speeds_are_equal_with_the_draws_interval() -> None:
    """Rising crosses at 63; the draws' places are 63 - 4 to 63 + 4, evenly: 95% of them 59.2 to 66.8."""
    drawn = np.stack([rising(63 + shift) for shift in SHIFTS], axis=1)
    steep = curve("Rising", rising(63), drawn)
    first, ahead = sentences(X, [FLAT, steep], [(steep, FLAT)])
    assert first == "Flat is first, Rising from agreement 63% [59, 67] on"
    assert ahead == "Rising overtakes Flat at agreement 63% [59, 67]"


def test_a_crossing_moves_with_the_draws_agreement() -> None:
    x = SampledCurve("Agreement", PLACES, PLACES[:, None] + SHIFTS)
    steep = curve("Rising", rising(63))
    assert next(sentences(x, [FLAT, steep], [])).endswith("63% [59, 67] on")


def test_draws_without_a_crossing_leave_the_interval_open() -> None:
    """Half of the draws have it at 52 and the others never: Rising is ahead from the start."""
    drawn = np.stack([rising(52 if i % 2 else 40) for i in range(len(SHIFTS))], axis=1)
    steep = curve("Rising", rising(52), drawn)
    assert next(sentences(X, [FLAT, steep], [])).endswith("52% [below 50, 52] on")
    late = curve("Rising", rising(88), np.stack([rising(88 if i % 2 else 99) for i in range(1001)], axis=1))
    assert next(sentences(X, [FLAT, late], [])).endswith("88% [88, above 90] on")


def test_who_is_ahead_throughout_is_said_with_how_far_and_how_surely() -> None:
    """1.1 and 1.5 times: 10 to 50%; at the first point a third of the draws has it behind."""
    values = np.array([1.1, 1.2, 1.3, 1.4, 1.5])
    drawn = values[:, None].repeat(len(SHIFTS), axis=1)
    drawn[0, : len(SHIFTS) // 3] = 0.9
    first, ahead = sentences(
        X, [curve("Ahead", values, drawn), FLAT], [(FLAT, curve("Ahead", values, drawn))]
    )
    assert first == "Ahead is first throughout"
    assert ahead == "Ahead is ahead of Flat throughout, by 10 to 50% (beyond chance at 4 of 5 points)"


def test_curves_that_cross_twice_say_both() -> None:
    """From 0.5 to 2 it is 1 after a third of the way, and back after two thirds."""
    bump = curve("Bump", np.array([0.5, 2.0, 2.0, 2.0, 0.5]))
    (ahead,) = list(sentences(X, [FLAT, bump], [(bump, FLAT)]))[1:]
    up, down = "agreement 53% [53, 53]", "agreement 87% [87, 87]"
    assert ahead == f"Bump overtakes Flat at {up}, Flat overtakes Bump at {down}"


class Lines:
    """Six prompts of each cell, of equal weight, whose sums are the record's values."""

    def __init__(self, rounds: dict[str, list[dict[str, float | int | str | None]]]) -> None:
        self._rounds = rounds

    def rounds(self, key: str) -> list[dict[str, float | int | str | None]]:
        return self._rounds[key]

    def answers(self, key: str) -> list[dict[str, float | int | str | None]]:
        return []


def table() -> Table:
    """`slow` has 2 tokens/s everywhere, `fast` 1, 2 and 4 at agreements of 50, 60 and 70; a pair is apart."""
    records, rounds = [], {}
    for point, agreement, speed in (
        ("0.5", 50, 1.0),
        ("0.6", 60, 2.0),
        ("0.7", 70, 4.0),
        ("a pair", 55, 3.0),
    ):
        for method, tokens_per_s in (("slow", 2.0), ("fast", speed), ("std", 1.0)):
            values = {
                "decode_tokens_per_s": tokens_per_s,
                "draft_correctness": float(agreement),
                "prompts": 6,
            }
            made = record(method, values, labels={"place": "phone", "point": point})
            records.append(made)
            rounds[made.key] = [
                {
                    "request": f"r{i}", "start": 0.0, "end": 100 / tokens_per_s, "emitted": 100,
                    "rows": 101, "drafted": 100, "accepted": agreement, "reach": 100, "round": 0,
                }
                for i in range(6)
            ]  # fmt: skip
    columns = [
        {
            "key": "agreement", "heading": "Agreement", "value": "draft_correctness", "unit": "%",
            "where": {"method": "std"},
        },
        *(
            {
                "key": name, "heading": name.title(), "value": "decode_tokens_per_s", "unit": "x",
                "where": {"method": name}, "over": {"method": "std"},
            }
            for name in ("slow", "fast")
        ),
    ]  # fmt: skip
    figure = {
        "kind": "curves", "columns": ["slow", "fast"], "x": "agreement", "panel": "place",
        "pairs": [["fast", "slow"]],
        "uprights": {"a paper's": ["edgellm.table1.squad", "52.5"]},
    }  # fmt: skip
    section = {"title": "T", "rows": {"by": ["place", "point"]}, "columns": columns, "figure": figure}
    return build(table_spec("table", section), records, {}, samples=Samples(Lines(rounds)))


def test_a_table_of_curves_says_what_crosses_and_draws_it() -> None:
    """Equal prompts have equal draws: the interval is the place itself. A row with a name is no point."""
    made = table()
    place = "agreement 60% [60, 60]"
    said = f"phone: Slow is first, Fast from {place} on; Fast overtakes Slow at {place}."
    assert made.footnotes == (said,)
    assert draw(made).startswith(b"\x89PNG")
    assert draw(made) == draw(made)


@pytest.mark.parametrize(
    ("figure", "sentence"),
    [
        ({"kind": "curves", "columns": ["a"], "x": "b"}, "column 'b'.*a"),
        ({"kind": "curves", "columns": ["a"], "x": "a", "panel": "place"}, "label 'place'"),
        ({"kind": "curves", "columns": ["a"], "x": "a", "pairs": [["a", "c"]]}, "column 'c'"),
        ({"kind": "bars", "columns": ["a"], "uprights": {"p": ["1"]}}, "bars have no `uprights`"),
    ],
)
def test_a_wrong_picture_is_said(figure: dict[str, object], sentence: str) -> None:
    section = {
        "title": "T", "rows": {"by": ["point"]},
        "columns": [{"key": "a", "heading": "A", "value": "a"}], "figure": figure,
    }  # fmt: skip
    with pytest.raises(InputError, match=sentence):
        table_spec("table", section)
