"""Numbers of committed files have ten significant digits, and are compared by value."""

from __future__ import annotations

import pytest

import records
from repro.core.digits import csv_text, in_ten_digits, json_text
from repro.records.record import Record
from same_text import same_text


def test_floats_alone_are_rounded() -> None:
    key = "123456789012345678901234"
    given = {
        "s": 2 / 3,
        "n": 12345678901234,
        "key": key,
        "none": None,
        "ends": (1 / 3, -0.0),
        "all": [1e-7 / 3],
    }
    expected = {"s": 0.6666666667, "n": 12345678901234, "key": key, "none": None}
    assert in_ten_digits(given) == {**expected, "ends": (0.3333333333, 0.0), "all": [3.333333333e-08]}
    assert (
        csv_text([("s", "n", "key"), (2 / 3, 12345678901234, key)])
        == f"s,n,key\n0.6666666667,12345678901234,{key}\n"
    )
    assert json_text([0.1 + 0.2, 7]) == "[0.3, 7]"
    with pytest.raises(ValueError, match="JSON compliant"):
        json_text([float("nan")])


def test_texts_are_compared_by_value() -> None:
    line = "std,1e307811c199,630,2.7215194032,1.2e-05\n"
    assert same_text(line, line.replace("2.7215194032", "2.7215194033"))
    for before, after in (
        ("2.7215194032", "2.7215194132"),  # 3.7e-9
        ("630", "631"),
        ("1e307811c199", "1e307811c198"),
        ("std", "draft"),
        (",1.2e-05", ""),
    ):
        assert not same_text(line, line.replace(before, after)), before


def test_a_record_has_ten_digits_wherever_it_is() -> None:
    """Its sum in another order, which another processor may give, is the same record."""
    first, second = (
        records.record("std", {"latency": s, "tokens": 3}) for s in (0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1)
    )
    assert (0.1 + 0.2 + 0.3) != (0.3 + 0.2 + 0.1)
    assert first == second == Record.from_json(first.to_json())
    assert first.to_json() == second.to_json()
    assert first.values == {"latency": 0.6, "tokens": 3}
