"""Leave-one-out over the papers' fits: every cell is listed, and the summary counts what can be left out."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from repro.fitting.device_fit import FitResult, fit_device
from repro.fitting.specification import specification
from repro.validation.__main__ import main
from repro.validation.papers import cell_rows, summary, write_papers


@pytest.fixture(scope="module")
def found() -> dict[str, FitResult]:
    return {name: fit_device(specification(name)) for name in ("jetson_tx2", "jetson_orin_nx")}


def test_every_cell_is_listed_with_what_was_left_out(found: dict[str, FitResult], tmp_path: Path) -> None:
    write_papers(tmp_path, found)
    rows = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [row["cell"] for row in rows] == [row[2] for row in cell_rows(found)]
    assert len(rows) == 5
    left = {row["cell"]: row["left out"] for row in rows}
    assert left.pop("edgellm.fig3.io_share") == ""
    assert all(left.values())


def test_the_summary_counts_what_can_be_left_out(found: dict[str, FitResult]) -> None:
    table = {row[0]: row[1:] for row in summary(found)}
    assert table["left out"][0] == table["trivial"][0] == table["fitted"][0] == "4"
    assert table["fitted, where no cell can be left out"][0] == "1"
    assert float(table["left out"][1]) < 6
    assert float(table["left out"][3]) > 0.9


def test_an_unknown_validation_and_negative_draws_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["phone"]) == 2
    assert "phones" in capsys.readouterr().err
    assert main(["phones", "--draws", "-1"]) == 2
    assert "--draws is -1" in capsys.readouterr().err
