"""The benchmark of switching: its arms compute the same."""

from __future__ import annotations

import torch

from repro.methods.elastilm.submodels import reorder
from tiny_dense import dense
from tiny_elastic import apart, uneven
from workshop.benchmarks import switching


@torch.no_grad()
def test_views_and_copies_say_the_same() -> None:
    made = dense("llama-2")
    whole = reorder(made, switching.random_order(made))
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
