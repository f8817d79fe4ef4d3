"""What a sweep's own table needs beside a published one: best values, a column a label, narrow terminals."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from invented_tables import table_spec
from records import record
from repro.core.errors import InputError
from repro.reports.formats.latex import to_latex
from repro.reports.formats.layout import page
from repro.reports.formats.render import MOST_ROWS, to_markdown, to_screen
from repro.reports.formats.values import decimals, unit_words, value_words
from repro.reports.spec.metric import MetricSpec, load_metrics
from repro.reports.tables.best import with_best
from repro.reports.tables.build import build
from repro.reports.tables.known import known_values
from repro.reports.tables.table import Table

COLUMNS = [
    {"key": "speed", "heading": "Decode", "value": "speed", "unit": "tokens/s", "better": "higher"},
    {
        "key": "step",
        "heading": "Time per token",
        "value": "step",
        "unit": "s",
        "digits": 3,
        "better": "lower",
    },
    {
        "key": "size",
        "heading": "Peak memory",
        "value": "emulated_dram",
        "unit": "GB",
        "scale": 1e-9,
        "digits": 1,
    },
]


def made(**changes: Any) -> Table:
    """A table of two methods on two phones."""
    cells = [
        record(
            method,
            {"speed": speed, "step": 1 / speed},
            labels={"device": device},
            memory={"emulated_dram": 2_500_000_000},
        )
        for method, device, speed in (
            *(("std", "OnePlus 12", 10.0), ("std", "Xiaomi 14", 8.0)),
            *(("lever", "OnePlus 12", 20.001), ("lever", "Xiaomi 14", 20.0)),
        )
    ]
    section = {"title": "Mine", "rows": {"by": ["method", "device"], "apart": True}, "columns": COLUMNS}
    return build(table_spec("mine", {**section, **changes}), cells, {}, {cell.key for cell in cells})


def on_screen(table: Table, width: int) -> list[str]:
    text = io.StringIO()
    Console(width=width, file=text, color_system=None).print(to_screen(page(table)))
    return text.getvalue().splitlines()


def test_the_best_of_each_column_is_marked_but_no_tie_of_figures_without_intervals() -> None:
    """LEVER's 20.001 and 20.00 differ in three digits alone."""
    speed, *others = COLUMNS
    table = made(best=True, columns=[{**speed, "digits": 3}, {**speed, "key": "short"}, *others])
    best = {
        row.id: [c.key for c, e in zip(table.columns, row.entries, strict=True) if "best" in e.marks]
        for row in table.rows
    }
    assert {row: keys for row, keys in best.items() if keys} == {"lever / OnePlus 12": ["speed"]}
    assert "| 20.001 ★ | 20.00 |" in to_markdown(page(table), [])
    assert "★ best of its column." in to_markdown(page(table), [])
    assert r"20.001{~$\star$}" in to_latex(page(table), [])
    assert not any("best" in entry.marks for row in made().rows for entry in row.entries)


def test_tied_figures_with_intervals_are_both_the_best() -> None:
    table = made()
    interval = (19.0, 21.0)
    rows = [replace(r, entries=tuple(replace(e, spread=interval) for e in r.entries)) for r in table.rows]
    marked = with_best(replace(table, rows=tuple(rows)))
    assert [row.id for row in marked.rows if "best" in row.entries[0].marks] == [
        "lever / OnePlus 12",
        "lever / Xiaomi 14",
    ]


def test_equal_values_and_columns_without_a_direction_have_no_best() -> None:
    table = made(best=True, columns=[{**COLUMNS[0], "value": "same"}, COLUMNS[2]])
    assert not any(entry.marks for row in table.rows for entry in row.entries)


def test_each_label_has_a_column() -> None:
    text = to_markdown(page(made()), [])
    assert "| method | device | Decode (tokens/s) ↑ |" in text
    assert "| LEVER | OnePlus 12 | 20.00 |" in text
    joined = made(rows={"by": ["method", "device"]})
    assert "| method / device | Decode" in to_markdown(page(joined), [])


def test_memory_is_a_figure_of_a_record_s_provenance() -> None:
    assert made().entry("std / OnePlus 12", "size").ours == pytest.approx(2.5)


def test_the_command_of_a_sweep_is_not_an_experiment_s() -> None:
    assert (
        made(command="python -m repro -m method=std,lever").command == "python -m repro -m method=std,lever"
    )
    assert made().command == "python -m repro experiment=mine"


def test_a_table_that_fits_is_printed_whole() -> None:
    lines = on_screen(made(), 100)
    assert sum("OnePlus 12" in line for line in lines) == 2


def test_headings_are_broken_before_a_table_is() -> None:
    lines = on_screen(made(), 64)
    assert sum("OnePlus 12" in line for line in lines) == 2
    assert not any("Time per token" in line for line in lines)
    assert not any("…" in line for line in lines)


def test_a_wide_table_is_printed_in_parts_that_name_the_rows() -> None:
    lines = on_screen(made(), 48)
    assert sum("OnePlus 12" in line for line in lines) == 4, "two parts of two such rows"
    assert max(map(len, lines)) <= 48
    assert not any("…" in line for line in lines)
    assert sum("20.00" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0193, "0.0193"),
        (51.8, "51.80"),
        (0.000123, "0.000123"),
        (1e-9, "1e-09"),
        (0.0, "0.00"),
        (None, "—"),
    ],
)
def test_small_values_keep_three_digits(value: float | None, words: str) -> None:
    assert value_words(MetricSpec("x", "speed", "X", "", value="x"), value) == words


def test_a_column_has_the_digits_of_its_smallest_value() -> None:
    metric = load_metrics().find("flash_bytes_per_token")
    assert decimals(metric, [5.6e7, 2e9, None]) == 4
    assert value_words(metric, 5.6e7) == "0.0560"
    assert unit_words(metric) == "GB/token"
    assert decimals(load_metrics().find("prompts"), [2]) == 0


def test_a_field_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(InputError, match="apert"):
        made(rows={"by": ["method"], "apert": True})


def test_a_text_that_another_arithmetic_computed_is_not_compared_with_the_targets() -> None:
    """The record keeps its figure; the table has that of the plain method alone, and says why."""
    column = {"key": "exact", "heading": "Exact match", "value": "exact_match", "unit": "share"}
    cells = [
        record(name, {"exact_match": 1.0, "speed": 1.0}, config={"method": {"name": name}})
        for name in ("std", "mllm_npu")
    ]
    spec = table_spec("mine", {"title": "Mine", "rows": {"by": ["method"]}, "columns": [column]})
    table = build(spec, cells, {}, {cell.key for cell in cells})
    assert {row.id: row.entries[0].ours for row in table.rows} == {"std": 1.0, "mllm_npu": None}
    (reason,) = [note for note in table.footnotes if note.startswith("mllm_npu computes with 8-bit")]
    assert "did not run" in reason
    assert "exact_match" not in known_values(cells[1])
    assert cells[1].figure("exact_match") == known_values(cells[0])["exact_match"] == 1.0


def test_a_speedup_is_over_the_row_with_other_labels_and_otherwise_the_same() -> None:
    """20.001 over 10 and 20 over 8; of a row that lacks a label, that label does not matter."""
    cells = [
        record("std", {"speed": 10.0}, labels={"device": "A"}),
        record("std", {"speed": 8.0}, labels={"device": "B"}),
        *(
            record("sd", {"speed": s}, labels={"device": d, "length": n})
            for d, n, s in (("A", "2", 20.0), ("B", "4", 20.0))
        ),
    ]
    column = {**COLUMNS[0], "key": "speedup", "relative_to": {"method": "std"}}
    section = {"title": "Mine", "rows": {"by": ["method", "device", "length"]}, "columns": [column]}
    table = build(table_spec("mine", section), cells, {}, {cell.key for cell in cells})
    assert {row.id: row.entries[0].ours for row in table.rows} == {
        "std / A / ": 1.0,
        "std / B / ": 1.0,
        "sd / A / 2": 2.0,
        "sd / B / 4": 2.5,
    }


def test_of_a_long_table_the_screen_has_the_first_rows() -> None:
    cells = [record("std", {"speed": 1.0 + n}, labels={"n": f"{n:04}"}) for n in range(MOST_ROWS + 7)]
    section = {"title": "Mine", "rows": {"by": ["n"]}, "columns": COLUMNS[:1]}
    table = build(table_spec("mine", section), cells, {}, {cell.key for cell in cells})
    shown = on_screen(table, 120)
    rows = [line for line in shown if len(line.split()) == 2 and line.split()[0].isdigit()]
    assert len(rows) == MOST_ROWS
    assert rows[0].split()[0] == "0000"
    assert "and 7 more rows, in the files" in shown
