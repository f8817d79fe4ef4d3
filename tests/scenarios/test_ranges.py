"""Marks of ranges are a function of the record: the same as its trace said, or would say today."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable

import pytest

from repro.core.paths import project_root
from repro.device.facts.holds import HOLDS_KEY
from repro.experiments.composing import load_components
from repro.experiments.tables import with_current_conf
from repro.records.record import Record
from repro.records.results import Results, open_results
from repro.scenarios.generation.ranges import outside_ranges
from repro.scenarios.registry import made
from workshop.validation.bands.replay import Replayed

RESULTS = project_root() / "results"


@pytest.fixture(scope="module")
def results() -> Results:
    load_components()
    return open_results(RESULTS)


def phases(sentences: Iterable[str]) -> set[str]:
    return {sentence.split()[0] for sentence in sentences}


def knew_ranges(record: Record) -> bool:
    """Whether the machine that a record was made with had ranges."""
    machines = [record.provenance.config.get(group) or {} for group in ("device", "engine")]
    return any(
        HOLDS_KEY in (table or {}) for part in machines for table in part.get("processors", {}).values()
    )


def test_a_record_says_of_its_rounds_what_its_trace_said(results: Results) -> None:
    compared, different = 0, []
    for record in results.all():
        if record.provenance.extrapolated or knew_ranges(record):
            compared += 1
            derived = outside_ranges(record, results.rounds)
            if phases(derived) != phases(record.provenance.extrapolated):
                different.append((record.experiment, record.key[:12], derived))
    assert compared > 300
    assert different == []


@pytest.mark.skipif("REPRO_DATA" not in os.environ, reason="needs the real rows")
@pytest.mark.parametrize("method", ["flash_ar", "chain_sd"])
def test_an_older_record_has_the_marks_of_a_fresh_run(results: Results, method: str) -> None:
    """A table's older cells, which knew no ranges, beside one prompt of the same configuration."""
    labels = {
        "device": "OnePlus 12",
        "method": method,
        "target": "Qwen3-8B",
        "dataset": "gsm8k",
        "variant": "usual",
    }
    older = next(
        record
        for record in results.records(results.members("lever/fig10"))
        if labels.items() <= record.labels.items()
    )
    assert not knew_ranges(older)
    config = Replayed(None, 1, os.environ["REPRO_DATA"]).config(with_current_conf(older))
    fresh = made(config).run(lambda *_: None).record.provenance.extrapolated
    assert phases(outside_ranges(older, results.rounds)) == phases(fresh)
    assert ("decode" in phases(fresh)) == (method == "chain_sd"), "Flash-AR decodes on the CPU, row by row"


def test_the_committed_quickstart_marks_the_speeds_of_wide_trees() -> None:
    """As its command prints today: LEVER's rows leave the NPU's ranges, OPT-Tree's drafts the CPU's."""
    with (RESULTS / "quickstart" / "table.csv").open(encoding="utf-8") as file:
        speeds = [line for line in csv.DictReader(file) if line["column"] == "speed"]
    marked = {line["id"] for line in speeds if "extrapolated" in (line["marks"] or "")}
    assert marked == {"opt_tree", "lever"}
