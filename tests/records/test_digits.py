"""Numbers of committed files have ten significant digits, and are compared by value."""

from __future__ import annotations

import records
from repro.records.record import Record
from same_text import same_text


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
