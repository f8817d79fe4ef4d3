"""What a table says of how its figures were made is what its records say, and changes with them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from invented_tables import built, column
from records import record
from repro.core.paths import project_root
from repro.records.record import Record
from repro.records.results import open_results
from repro.reports.reference.names import STAND_INS_PREFIX
from repro.reports.tables.how_made import how_made, words_of
from repro.reports.tables.table import Table


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Cells on an emulated phone, streamed."""
    results = open_results(project_root() / "results")
    return list(results.records(results.members("quickstart")))


def changed(record: Record, **provenance: Any) -> Record:
    return replace(record, provenance=replace(record.provenance, **provenance))


def test_numbers_of_the_machine_are_counted_by_source(records: list[Record]) -> None:
    """OnePlus 12's file and engine have 27 numbers that decide costs; one more of them is measured."""
    assert "of their 27 numbers 0 measured, 11 printed, 6 fitted, 10 assumed." in how_made(records)
    measured = []
    for each in records:
        config = deepcopy(dict(each.provenance.config))
        config["device"]["power"]["idle"]["source"] = "measured"
        measured.append(changed(each, config=config))
    assert "1 measured, 11 printed, 6 fitted, 9 assumed" in how_made(measured)


def test_cells_of_a_real_device_and_without_machine_or_weights_are_said(records: list[Record]) -> None:
    mixed = [changed(records[0], clock="wall"), *records[1:]]
    assert words_of(mixed) == "emulated and measured"
    assert "Measured: Linux on x86_64" in how_made(mixed)
    versions = {n: v for n, v in records[0].provenance.versions.items() if n != "cost model"}
    unbilled = changed(records[0], versions=versions, weights="none")
    assert how_made([unbilled]).startswith("No machine: figures of weights and texts alone.")
    assert "No weights computed" in how_made([unbilled])
    assert words_of([unbilled]) == how_made([]) == ""


SMOL = {"name": "smollm2_135m_instruct", "hub": {"repo": "HuggingFaceTB/SmolLM2-135M-Instruct"}}


def table_of(checkpoint: dict[str, Any], **config: Any) -> Table:
    """The table of a cell whose weights are another model's than the billed one's."""
    config |= {"target": {"checkpoint": checkpoint}}
    cell = record("lever", {"x": 1.0}, labels={"target": "Qwen3-8B"}, weights="proxy", config=config)
    return built([cell], [column("x")], footnotes=[f"{STAND_INS_PREFIX}SmolLM2 computes.", "Five prompts."])


@pytest.mark.parametrize(
    ("checkpoint", "named"),
    [
        (SMOL, "SmolLM2-135M"),
        (SMOL | {"hub": {"repo": "Qwen/Qwen2.5-Coder-1.5B-Instruct"}}, "Qwen2.5-Coder-1.5B-Instruct"),
        (SMOL | {"folder": "qwen2.5-coder"}, "qwen2.5-coder"),
        ({"name": "qwen3_8b", "hub": {"repo": "Qwen/Qwen3-8B"}}, "qwen3_8b"),
    ],
)
def test_a_title_names_the_weights_that_computed(checkpoint: dict[str, Any], named: str) -> None:
    """A checkpoint's file whose folder or repository was changed has still its own name.

    Footnotes about stand-ins are left out of own weights.
    """
    table = table_of(checkpoint)
    assert f"{named} computes in place of Qwen3-8B" in table.caption
    assert table.footnotes == ("SmolLM2 computes.", "Five prompts.")
    assert table_of(checkpoint, weights="own").footnotes == ("Five prompts.",)
