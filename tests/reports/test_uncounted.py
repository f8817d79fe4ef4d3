"""No second and no joule of a request is in no column of a table, or its note says which."""

from __future__ import annotations

import csv

from committed_results import RESULTS
from repro.records.record import Record
from repro.records.results import open_results
from repro.reports.files import ALTERED
from repro.reports.spec.expand import expand
from repro.reports.spec.experiment import experiment_file
from repro.reports.spec.spec import ColumnSpec
from repro.reports.tables.build import SHORT

LINE = "Of a request with a draft, in no column: "
FIRST, DRAFT, DECODED = "the time to the first token", "the draft's prompt after it", "decoding"
PROMPTS, DECODING = "the energy of the prompts", "the energy of decoding"


def left_out(record: Record, shown: set[str]) -> set[str]:
    """The parts of a cell's requests that no shown value has, worked out from its figures alone."""
    values = {name: number for name, number in record.values.items() if isinstance(number, (int, float))}
    first, prompts, decoded = values["ttft"], values["prefill_seconds"], values["decode_seconds"]
    count = values["prompts"]
    seconds = {
        FIRST: (first, {"ttft", "prefill_tokens_per_s", "prefill_seconds"}),
        DRAFT: (prompts / count - first, {"prefill_seconds"}),
        DECODED: (decoded / count, {"decode_seconds", "decode_tokens_per_s", "time_per_token"}),
    }
    joules = {
        PROMPTS: (values.get("prefill_joules", 0.0) / count, {"prefill_joules"}),
        DECODING: (values.get("decode_joules", 0.0) / count, {"decode_joules", "joules_per_token"}),
    }
    missing: set[str] = set()
    for parts, whole in ((seconds, {"latency", "answer_seconds"}), (joules, {"answer_joules"})):
        if any(shown & names for _, names in parts.values()) and not shown & whole:
            missing |= {part for part, (n, names) in parts.items() if n > 5e-4 and not shown & names}
    return missing


def shown_values(table: str, columns: tuple[ColumnSpec, ...]) -> dict[str, set[str]]:
    """The values behind the figures of a table's CSV file, by the beginning of their cell's key."""
    of_column = {c.key: {name for name in (c.value, c.total, c.per) if name} for c in columns}
    shown: dict[str, set[str]] = {}
    with (RESULTS / table / "table.csv").open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            for key in f"{line['cell']} {line['baseline']}".split():
                shown.setdefault(key, set()).update(of_column.get(line["column"], ()))
    return shown


def test_every_committed_table_says_what_it_leaves_out() -> None:
    """The figures of the cells and the lines of the tables' CSV say what stands behind a column."""
    results = open_results(RESULTS)
    checked = said = 0
    for name in results.tables():
        content = experiment_file(name.partition(ALTERED)[0])
        records = results.records(results.members(name))
        drafting = [r for r in records if r.done and "draft" in r.provenance.inputs]
        if not drafting or "title" not in content.get("table", {}):
            continue
        shown = shown_values(name, expand(content["name"], content["table"], content).columns)
        missing: set[str] = set()
        for cell in drafting:
            if {"ttft", "prefill_seconds", "decode_seconds"} <= cell.values.keys():
                missing |= left_out(cell, shown.get(cell.key[:SHORT], set()))
        text = (RESULTS / name / "table.md").read_text(encoding="utf-8")
        notes = [line.partition(LINE)[2] for line in text.splitlines() if LINE in line]
        parts = {part.partition(" (")[0] for note in notes for part in note.split("; ")}
        assert parts == missing, name
        checked, said = checked + 1, said + bool(notes)
    assert checked > 30
    assert said > 10
