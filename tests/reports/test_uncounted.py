"""No second and no joule of a request is in no column of a table, or its note says which."""

from __future__ import annotations

import pytest

from committed_results import RESULTS, cells
from invented_tables import table_spec
from records import record
from repro.experiments.plan import axes, composed, table_section
from repro.experiments.tables import asked_of, made_table, overrides_of
from repro.records.record import Record
from repro.records.results import open_results
from repro.reports.spec.spec import ColumnSpec, TableSpec
from repro.reports.tables.build import build
from repro.reports.tables.uncounted import uncounted

VALUES = {
    "prompts": 2,
    "ttft": 0.76,
    "prefill_seconds": 15.0,
    "decode_seconds": 8.0,
    "decode_tokens": 254,
    "prefill_joules": 60.0,
    "decode_joules": 30.0,
    "joules_per_token": 0.12,
    "latency": 11.5,
}
"""Of a request: 0.76 s to the first token, 6.74 s for the draft, 4 s of decoding; 30 and 15 J."""

TTFT = ColumnSpec("ttft", "First token", value="ttft")
SPEED = ColumnSpec("speed", "Decode", total="decode_tokens", per="decode_seconds")
PER_TOKEN = ColumnSpec("joules", "Energy", value="joules_per_token")
ANSWER = ColumnSpec("answer", "Whole answer", value="answer_seconds")
WITH_DRAFT = {"dataset": "d", "target": "t", "draft": "e"}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ((TTFT, SPEED), "the draft's prompt after it (6.7 s)"),
        ((SPEED,), "the time to the first token (0.76 s); the draft's prompt after it (6.7 s)"),
        ((TTFT, SPEED, PER_TOKEN), "the draft's prompt after it (6.7 s); the energy of the prompts (30 J)"),
        ((PER_TOKEN,), "the energy of the prompts (30 J)"),
    ],
)
def test_what_is_in_no_column_is_said_with_its_amount(columns: tuple[ColumnSpec, ...], said: str) -> None:
    lever = record("lever", VALUES, inputs=WITH_DRAFT)
    assert (
        uncounted((column, lever) for column in columns)
        == f"Of a request with a draft, in no column: {said}."
    )


def test_nothing_is_said_where_nothing_is_left_out() -> None:
    lever, plain = record("lever", VALUES, inputs=WITH_DRAFT), record("std", VALUES)
    assert uncounted([(TTFT, lever), (ANSWER, lever)]) == ""
    assert uncounted([(SPEED, plain)]) == "", "without a draft all prompts are in the time to the first token"
    assert uncounted([(ColumnSpec("a", "Acceptance", value="acceptance_length"), lever)]) == ""


def test_of_several_cells_of_a_row_the_one_with_the_least_counts() -> None:
    """Chain-SD on each processor: each length of prompts has its own best one, whole."""
    placed = [
        record(
            "chain_sd",
            VALUES | {"latency": seconds, "ttft": first},
            labels={"prompt": prompt, "placement": place},
        )
        for prompt, place, seconds, first in (
            ("64", "cpu", 3.0, 1.0),
            ("64", "gpu", 2.0, 1.5),
            ("1024", "cpu", 9.0, 8.0),
            ("1024", "gpu", 11.0, 2.0),
        )
    ]
    columns = [
        {"key": key, "heading": key, "value": value, "where": {"prompt": prompt}}
        for key, value, prompt in (
            ("answer_64", "answer_seconds", "64"),
            ("answer_1024", "answer_seconds", "1024"),
            ("ttft_1024", "ttft", "1024"),
            ("place_64", "placement", "64"),
            ("place_1024", "placement", "1024"),
        )
    ]
    rows = {"by": ["method"], "least": "answer_seconds"}
    table = build(table_spec("table", {"title": "t", "rows": rows, "columns": columns}), placed, {})
    assert [entry.ours for entry in table.rows[0].entries] == [2.0, 9.0, 8.0, "gpu", "cpu"]


def left_out(own: dict[str, float], names: set[str]) -> set[str]:
    """Worked out from a cell's figures alone: the parts of a request that no named value has."""
    whole = {"latency", "answer_seconds"}
    speed = {"decode_seconds", "decode_tokens_per_s", "time_per_token"}
    first = {"ttft", "prefill_tokens_per_s"}
    after = own["prefill_seconds"] / own["prompts"] - own["ttft"]
    found = set()
    if names & (speed | first | {"prefill_seconds"}) and not names & whole:
        found |= {"the draft's prompt"} if after > 5e-4 and "prefill_seconds" not in names else set()
        found |= (
            {"first token"} if not names & (first | {"prefill_seconds"}) and own["ttft"] > 5e-4 else set()
        )
        found |= {"; decoding", ": decoding"} if not names & speed and own["decode_seconds"] > 1e-3 else set()
    if names & {"joules_per_token", "decode_joules"} and not names & {"prefill_joules", "answer_joules"}:
        found |= {"energy of the prompts"}
    return found


def test_every_committed_table_says_what_it_leaves_out() -> None:
    """Figures, not code: the cells' JSON and the lines of the tables' CSV say what stands behind a column."""
    results = open_results(RESULTS)
    checked = said = 0
    for name in results.tables():
        members = results.members(name)
        records = {r.key: r for r in results.records(members)}
        drafting = {key for key, r in records.items() if "draft" in r.provenance.inputs and r.done}
        config = composed(*overrides_of(name, members))
        asked, spec = asked_of(name, members, axes(config)), table_section(config)
        if not drafting or not isinstance(spec, TableSpec):
            continue
        table = made_table(asked, asked.spec(spec), members, list(records.values()), older=())
        notes = [note for note in table.footnotes if note.startswith("Of a request with a draft")]
        had = shown_values(table.columns, [row.entries for row in table.rows], drafting)
        missing = set()
        for cell in cells(name):
            values = cell["values"]
            if cell["key"] in had and {"ttft", "prefill_seconds", "decode_seconds"} <= values.keys():
                missing |= left_out(values, had[cell["key"]])
        if missing:
            assert len(notes) == 1, name
            words = missing - {"; decoding", ": decoding"}
            assert all(part in notes[0] for part in words), (name, notes, missing)
            assert bool(missing - words) <= ("decoding (" in notes[0]), name
        else:
            assert notes == [], name
        checked, said = checked + 1, said + bool(notes)
    assert checked > 30
    assert said > 10


def shown_values(columns: object, rows: object, keys: set[str]) -> dict[str, set[str]]:
    """The values of records behind the columns of a table, by the cells that its entries name."""
    found: dict[str, set[str]] = {}
    for entries in rows:  # type: ignore[attr-defined]
        for column, entry in zip(columns, entries, strict=True):  # type: ignore[call-overload]
            for short in {*entry.cells, *entry.baseline}:
                for key in keys:
                    if key.startswith(short):
                        names = {column.value, column.total, column.per} - {None}
                        found.setdefault(key, set()).update(names)
    return found


def test_the_law_would_see_a_faulty_table() -> None:
    """LEVER's row on a phone: 0.76 s and 34 tokens/s, its draft's 6.7 s in neither column."""
    own: Record = record("lever", VALUES, inputs=WITH_DRAFT)
    assert left_out(dict(own.values), {"ttft", "decode_tokens", "decode_seconds"}) == {"the draft's prompt"}  # type: ignore[arg-type]
