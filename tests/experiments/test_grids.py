"""A grid's cells: equal values are one, and they are counted before they are made."""

from __future__ import annotations

from typing import Any

import pytest

from hydra_plugins.repro_grid import GridSweeper
from repro.core.errors import InputError
from repro.experiments.composing import with_sweep
from repro.reports.spec.beside import carry_all
from repro.reports.spec.grid import ExperimentGrid


def jobs(*typed: str, most: int | None = 100, **grid: Any) -> list[list[str]]:
    """The cells of a command with these overrides, for an experiment with this grid."""
    sweep = with_sweep({"name": "mine", "grid": grid})
    section = sweep["hydra"]["sweeper"] if grid else {}
    return GridSweeper(most, **section).jobs(typed)


@pytest.mark.parametrize(
    ("values", "different"),
    [
        ("std,flash_ar,std,draft", ["std", "flash_ar", "draft"]),
        ("0.3,0.30,3e-1,.3", ["0.3"]),
        ("4,4.0,4_0,40", ["4", "40"]),
        ("1,true,True", ["1", "True"]),
        ("null,NULL,0", ["null", "0"]),
        ("choice(8,16,8)", ["8", "16"]),
    ],
)
def test_a_value_that_is_listed_twice_is_one_cell_in_its_first_spelling(
    values: str, different: list[str]
) -> None:
    assert jobs(f"x={values}") == [[f"x={value}"] for value in different]
    assert jobs(f"x={values}", "y=1,2,1.0") == [[f"x={v}", f"y={n}"] for v in different for n in (1, 2)]


def test_a_part_holds_where_an_axis_has_its_value() -> None:
    """On the command line, in a sweep of both, and in the list of cells that a table is made from."""
    parts = [{"when.weights": "stand_in", "m": ["a", "b"]}, {"when.weights": "own", "m": "c"}]
    grid = {"weights": "stand_in", "n": [1, 2], "cells": parts}
    first = [["weights=stand_in", f"n={n}", f"m={m}"] for n in (1, 2) for m in "ab"]
    own = [["weights=own", f"n={n}", "m=c"] for n in (1, 2)]
    assert jobs(**grid) == first
    assert sorted(jobs("weights=own", **grid)) == own
    assert sorted(jobs("weights=stand_in,own", **grid)) == sorted([*first, *own])
    points = ExperimentGrid.parse(grid, "here").points()
    assert points == [{"weights": "stand_in", "n": n, "m": m} for n in (1, 2) for m in "ab"]
    with pytest.raises(InputError, match=r"when.wieghts: .*Did you mean weights"):
        ExperimentGrid.parse({**grid, "cells": [{"when.wieghts": "own", "m": "c"}]}, "here")


@pytest.mark.parametrize(
    ("typed", "count"),
    [
        (["x=range(0,1000000000000)"], "1,000,000,000,000"),
        (["x=range(10,0,-1)", "y=range(0,1,0.1)"], "100"),
        (["x=range(0,10)", "y=range(0,11)"], "110"),
        (["x=a,b,c", "y=range(0,50)", "z=1"], "150"),
    ],
)
def test_a_grid_is_refused_with_its_count_unless_a_setting_allows_it(typed: list[str], count: str) -> None:
    number = int(count.replace(",", ""))
    with pytest.raises(
        InputError, match=rf"the sweep has {count} cells, .*max_cells={number - 1} is the most"
    ):
        jobs(*typed, most=number - 1)
    if number < 1000:
        assert len(jobs(*typed, most=number)) == len(jobs(*typed, most=None)) == number


@pytest.mark.parametrize("values", ["range(5,1)", "range(0,5,-1)"])
def test_a_sweep_without_cells_is_an_error(values: str) -> None:
    with pytest.raises(InputError, match="the sweep has no cells: there is no value of x"):
        jobs(f"x={values}", "y=1,2")


def test_in_an_experiment_the_component_s_own_cell_stays_and_its_default_is_no_second_one() -> None:
    """Chain-SD drafts 8 tokens by itself."""
    found = jobs(*carry_all(["chain_sd.length=2,8"]), method=["std", "chain_sd"])
    assert found == [
        ["method=std"],
        ["method=chain_sd"],
        ["method=chain_sd", "method.length=2", "++labels.method='chain_sd, length 2'"],
    ]


def test_only_the_command_replaces_what_lies_below_a_choice() -> None:
    grid = {"dataset": ["squad"], "cells": [{"dataset.words": 20}, {"dataset.words": 40}]}
    assert [job[-1] for job in jobs(**grid)] == ["dataset.words=20", "dataset.words=40"]
    assert jobs("dataset=gsm8k", **grid) == [["dataset=gsm8k"]]
