"""The benchmark of switching: its arms compute the same, and each counts once a round."""

from __future__ import annotations

import torch

from repro.models.elastic.submodels import reordered
from tiny_dense import dense
from tiny_elastic import apart, uneven
from workshop.benchmarks import switching


def test_every_arm_runs_once_a_round_and_once_before() -> None:
    ran: list[str] = []
    arms = {name: (lambda name=name: ran.append(name)) for name in "ab"}
    found = switching.timed(arms, 5, 0.0)
    assert {name: len(seconds) for name, seconds in found.items()} == {"a": 5, "b": 5}
    assert all(set(ran[i : i + 2]) == {"a", "b"} for i in range(0, 12, 2))
    assert len(ran) == 12


def test_lines_say_how_many_times_the_base() -> None:
    lines = list(switching.lines("x", {"pointer": [1.0, 2.0], "copy": [4.0, 8.0]}, "pointer"))
    assert "4.00 times pointer (4 to 4)" in lines[1]
    assert "6000.0000 ms" in lines[1]


@torch.no_grad()
def test_views_and_copies_say_the_same() -> None:
    made = dense("llama-2")
    whole = reordered(made, switching.random_order(made))
    for rows in switching.PASSES:
        arms = switching.pass_arms(whole, uneven(made), rows)
        first = arms["views"]()
        assert apart(first, arms["copy"]()) < 1e-4
        assert torch.equal(first, arms["views"]()), "a pass leaves the cache as it was"


def test_gathering_takes_the_rows_that_the_pointer_takes() -> None:
    arms = switching.matrix_arms(64, torch.float32)
    view, gathered = arms["pointer"](), arms["gather"]()
    assert torch.allclose(view.sum(0), gathered.sum(0), atol=1e-4)
    assert view.data_ptr() != gathered.data_ptr()
