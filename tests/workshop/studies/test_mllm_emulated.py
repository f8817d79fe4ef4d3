"""The engine files of mllm-NPU say what the fits give, and a made table is scored as its cells say."""

from __future__ import annotations

import csv
from math import log
from pathlib import Path

import pytest

from repro.device.device_file import facts
from repro.device.engines.engine_file import device_with_engine
from workshop.studies.fit_mllm import __main__ as command
from workshop.studies.fit_mllm import emulated, yardsticks
from workshop.studies.fit_mllm.closed_forms import (
    BOUND,
    BOUND_AT,
    COLUMNS,
    DATASETS,
    FITTED,
    OURS,
    RESTATED,
    cell,
    micro,
    published,
)


def test_the_baselines_and_table_3_are_the_closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated, "solve_rate", lambda: emulated.engine().processors["npu"].peak["int8"])
    anchored = emulated.engine(emulated.ANCHORED).processors["npu"]
    solved = anchored.start["int8"].at(1), anchored.peak["int8"]
    monkeypatch.setattr(emulated, "solve_anchored", lambda: solved)
    numbers = list(emulated.fitted_numbers())
    assert len(numbers) == 5 * 4 + 1 + 6
    assert [name for name, ours, fit in numbers if emulated.differs(ours, fit)] == []
    assert emulated.differs(1.0, 1.01)


def test_the_rate_is_the_least_that_meets_the_bound() -> None:
    """A greedy order makes steps: it is met by 1%, and with a rate 0.5% lower it is not."""
    model, prompt = BOUND_AT
    rate = emulated.engine().processors["npu"].peak["int8"]

    def speed(of: float) -> float:
        return prompt / emulated.request(emulated.with_npu(*micro(), of), model, prompt, 1)[0]

    assert speed(0.995 * rate) < published(BOUND) <= speed(rate) < 1.01 * published(BOUND)


def test_the_anchored_npu_leaves_the_least_of_its_rows() -> None:
    known = emulated.engine(emulated.ANCHORED).processors["npu"]

    def left(start: float, rate: float) -> float:
        on = emulated.with_npu(start, micro()[1], rate)
        rows = [(m, d) for m in COLUMNS[OURS].fitted for d in DATASETS]
        return sum(log(emulated.row(on, m, d) / published(cell(OURS, m, d))) ** 2 for m, d in rows)

    start, rate = known.start["int8"].at(1), known.peak["int8"]
    least = left(start, rate)
    assert all(left(start * by, rate) > least and left(start, rate * by) > least for by in (0.95, 1.05))


@pytest.mark.parametrize(
    ("engine", "cells"),
    [
        ("mllm_npu", {*RESTATED}.union(*(FITTED[name] for name in FITTED if name != "anchored"))),
        (  # baselines as it extends mllm_npu
            "mllm_npu_anchored",
            {one for one in RESTATED if ".prefill_throughput" not in one}.union(*FITTED.values()) - {BOUND},
        ),
    ],
)
def test_an_engine_file_names_the_cells_that_it_is_fitted_to(engine: str, cells: set[str]) -> None:
    described = facts(device_with_engine("xiaomi_14", engine))
    said = {one for fact in described for one in fact.cells} - {
        "mllm_npu.fig15.k60pro.1024.tflite_gpu"
    }  # watts
    assert {one for one in said if one.startswith("mllm_npu")} - set(_own_engine()) == cells - set(
        _own_engine()
    )


def _own_engine() -> list[str]:
    """Cells of the device file itself, of which an engine may leave some in place."""
    return [
        one for fact in facts(device_with_engine("xiaomi_14")) for one in fact.cells if ".text.3_4." in one
    ]


@pytest.mark.parametrize("phones", [("xiaomi_14", "redmi_k70_pro"), ("redmi_k60_pro", "redmi_k60_champion")])
def test_phones_of_one_chip_have_one_npu(phones: tuple[str, str]) -> None:
    """Whatever their device files say of it."""
    ours, theirs = (
        {
            f.path: (f.value, f.points)
            for f in facts(device_with_engine(name, "mllm_npu"))
            if f.path.startswith("processors.npu")
        }
        for name in phones
    )
    assert ours == theirs


def test_a_made_table_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All cells met but one engine's, which comes out ahead of mllm-NPU."""
    path = tmp_path / "table.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["reference", "ratio"])
        for column, of_column in COLUMNS.items():
            ratio = 0.01 if column == "tflite" else 1.0
            writer.writerows([cell(column, m, d), ratio] for m in of_column.models for d in DATASETS)
    assert yardsticks.order(yardsticks.read_ratios(path)) == (12, 20, 152 - 8, 152)
    assert command.main(["--score", str(path)]) == 0
    assert "99.0% (99%)" in capsys.readouterr().out
