"""Arms that take turns: each once a round and once before, and ratios within a round."""

from __future__ import annotations

import pandas as pd
import pytest

from workshop.benchmarks.alternating import show, take_turns

pytestmark = pytest.mark.quick


def test_every_arm_runs_once_a_round_and_once_before() -> None:
    ran: list[str] = []

    def arm(name: str) -> float:
        ran.append(name)
        return float(len(ran))

    seconds = take_turns({name: (lambda name=name: arm(name)) for name in "ab"}, 5)
    assert list(seconds) == ["a", "b"]
    assert len(ran) == 12
    assert all(set(ran[i : i + 2]) == {"a", "b"} for i in range(0, 12, 2))
    assert sorted(seconds.stack()) == [*range(3, 13)], "the first round is not counted"


def test_a_line_has_the_median_the_share_of_the_floor_and_how_many_times_as_fast(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seconds = pd.DataFrame({"pointer": [1.0, 2.0, 3.0], "copy": [4.0, 8.0, 12.0]})
    show(seconds, {"pointer": 0.5}, ("pointer",), work=4)
    pointer, copy = capsys.readouterr().out.splitlines()
    assert pointer.split(maxsplit=1)[1] == (
        "2000.000 ms (1000.000 to 3000.000)       2.0 a second,  25% of the floor"
    )
    assert copy.endswith("0.25 (0.25 to 0.25) times as fast as pointer")
    assert "8000.000 ms" in copy
