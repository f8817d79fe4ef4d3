"""The line of how figures were made counts the records' own facts, and changes with them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from repro.core.paths import project_root
from repro.records.record import Record
from repro.records.results import open_results
from repro.reports.tables.how_made import how_made, words_of


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Cells on an emulated phone, streamed."""
    results = open_results(project_root() / "results")
    return list(results.records(results.members("quickstart")))


def changed(record: Record, **provenance: Any) -> Record:
    return replace(record, provenance=replace(record.provenance, **provenance))


def measured(record: Record) -> Record:
    """The record with one number of its phone measured in place of assumed."""
    config = deepcopy(dict(record.provenance.config))
    power = config["device"]["power"]["idle"]
    assert power["source"] == "assumed"
    power["source"] = "measured"
    return changed(record, config=config)


def test_it_counts_what_the_machine_rests_on(records: list[Record]) -> None:
    """OnePlus 12's file and engine have 11 printed, 5 fitted and 11 assumed numbers that decide costs."""
    line = how_made(records)
    assert "Emulated on OnePlus 12 (engine LEVER, reads overlapped)" in line
    assert "of their 27 numbers 0 measured, 11 printed, 6 fitted, 10 assumed." in line
    assert line.endswith("SmolLM2-135M in float32 computed; costs are of q4_0.")
    assert words_of(records) == "emulated"


def test_one_number_that_is_measured_changes_it(records: list[Record]) -> None:
    assert "1 measured, 11 printed, 6 fitted, 9 assumed" in how_made([measured(one) for one in records])


def test_one_cell_of_a_real_device_changes_it(records: list[Record]) -> None:
    timed = changed(records[0], clock="wall")
    assert words_of([timed, *records[1:]]) == "emulated and measured"
    assert "Measured: Linux on x86_64" in how_made([timed, *records[1:]])
    assert words_of([timed]) == "measured"


def test_without_a_machine_or_weights_it_says_so(records: list[Record]) -> None:
    versions = {n: v for n, v in records[0].provenance.versions.items() if n != "cost model"}
    unbilled = changed(records[0], versions=versions)
    assert how_made([unbilled]).startswith("No machine: figures of weights and texts alone.")
    assert words_of([unbilled]) == how_made([]) == ""
    assert "No weights computed" in how_made([changed(records[0], weights="none")])
