"""Leave-one-out over the papers' fits: every cell is listed, and the summary counts what can be left out."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from workshop.fitting.device_fit import FitResult, device_problem, fit_device
from workshop.fitting.errors import ErrorSummary, errors
from workshop.fitting.problem import Solution
from workshop.fitting.specification import specification
from workshop.validation.__main__ import main
from workshop.validation.papers import (
    HEADINGS,
    BaselineCell,
    baseline_cells,
    markdown,
    summary,
    trivial_values,
    write_papers,
)


@pytest.fixture(scope="module")
def cells() -> list[BaselineCell]:
    names = ("edgellm_xiaomi_11", "jetson_orin_nx", "jetson_tx2")
    return list(baseline_cells({name: fit_device(specification(name)) for name in names}))


def test_every_cell_is_listed_with_what_was_left_out(cells: list[BaselineCell], tmp_path: Path) -> None:
    write_papers(tmp_path, cells)
    rows = list(csv.DictReader((tmp_path / "rows.csv").open(encoding="utf-8")))
    assert [row["cell"] for row in rows] == [cell.id for cell in cells]
    assert [row["by_default"] for row in rows] == ["yes"] * 7 + ["no"] * 4
    left = {row["cell"]: row["left_out"] for row in rows}
    assert left.pop("edgellm.fig3.io_share") == ""
    assert all(left.values())
    lines = list(csv.reader((tmp_path / "table.csv").open(encoding="utf-8")))
    assert lines == [list(HEADINGS), *summary(cells)]
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == markdown(cells)


def test_the_summary_counts_what_can_be_left_out_by_paper(cells: list[BaselineCell]) -> None:
    table = {row[0]: dict(zip(HEADINGS, row, strict=True)) for row in summary(cells)}
    assert list(table) == ["all papers", "EdgeLLM", "forms that no setup takes"]
    assert table["EdgeLLM"]["trivial rule"] == "nearest"
    assert table["EdgeLLM"] == {**table["all papers"], "cells": "EdgeLLM"}
    assert (table["EdgeLLM"]["n"], table["EdgeLLM"]["not determined"]) == ("6", "1")
    assert float(table["EdgeLLM"]["skill vs trivial"]) < 0, "copying another baseline's joules is better"
    other = table["forms that no setup takes"]
    assert (other["n"], other["not determined"]) == ("4", "0")
    assert float(other["median error, %"]) < 6
    assert float(other["skill vs trivial"]) > 0.9


def test_requests_by_printed_lengths_are_as_a_reader_computed_them() -> None:
    """32 requests of Table 4 by their engine's others, as a hostile reader computed them: 3.5% (90%: 7.1)."""
    programs = [specification(f"mllm_baselines_{name}") for name in ("lcpp", "mlc", "mnn", "pi", "tflite")]
    found: dict[str, ErrorSummary] = {}
    unsolved = [FitResult(given, device_problem(given), Solution({})) for given in programs]
    values = {cell: rules for result in unsolved for cell, rules in trivial_values(result).items()}
    aims = {cell: aim for result in unsolved for cell, aim in result.aims.items()}
    for rule in ("lengths", "nearest"):
        found[rule] = errors({cell: rules[rule] for cell, rules in values.items()}, aims, list(values))
    assert found["lengths"].n == 32
    assert found["lengths"].median == pytest.approx(0.035, abs=5e-4)
    assert found["lengths"].p90 == pytest.approx(0.071, abs=5e-4)
    assert found["nearest"].median > 0.3, "a rule that does not know the prompt's length"


def test_errors_are_those_of_the_cells_that_were_left_out() -> None:
    invented = [
        BaselineCell("one", 1, True, f"lever.x{i}", 10.0, 10.0, 10.0 + i, {"rate": 20.0}) for i in (1, 2, 3)
    ] + [BaselineCell("one", 1, True, "lever.y", 10.0, 5.0, None)]
    line = dict(zip(HEADINGS, summary(invented)[1], strict=True))
    assert (line["cells"], line["n"], line["not determined"]) == ("LEVER", "3", "1")
    assert (line["median error, %"], line["trivial: median, %"], line["fitted: median, %"]) == (
        "20.0",
        "100.0",
        "0.0",
    )
    assert line["skill vs trivial"] == "0.80"


def test_an_unknown_validation_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["phone"]) == 2
    assert "phones" in capsys.readouterr().err
