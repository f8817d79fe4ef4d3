"""Marks of ranges are a function of the record: the same as its trace said."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from repro.core.paths import project_root
from repro.device.facts.holds import HOLDS_KEY
from repro.experiments.composing import load_components
from repro.records.record import Record
from repro.records.results import Results, open_results
from repro.scenarios.generation.ranges import outside_ranges

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
