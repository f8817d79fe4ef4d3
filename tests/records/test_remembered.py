"""Results of pure functions that are remembered by the content of what they were given."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from repro.core.remembered import remember


def test_equal_data_are_asked_once_and_others_again() -> None:
    asked: list[Any] = []

    @remember(2)
    def count(given: Any) -> int:
        asked.append(given)
        return len(asked)

    assert [count({"a": [1, "x"]}), count({"a": [1, "x"]}), count({"a": [1.0, "x"]})] == [1, 1, 2]
    assert [count({"a": [True, "x"]}), count({"a": [1.0, "x"]}), count({"a": [1, "x"]})] == [3, 2, 4]
    mapping = MappingProxyType({"a": 1})
    assert [count(mapping), count(mapping)] == [5, 6], "what has no plain content is not remembered"
