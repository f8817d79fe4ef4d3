"""What a sweep's own table needs beside a published one: best values, a column a label, narrow terminals."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from invented_tables import table_spec
from records import record
from repro.records.record import Record
from repro.reports.formats.layout import decimals, page, value_words
from repro.reports.formats.render import MOST_ROWS, to_markdown, to_screen
from repro.reports.spec.metric import MetricSpec, load_metrics
from repro.reports.tables.build import build
from repro.reports.tables.known import known_values
from repro.reports.tables.table import Table

SPEED = {"key": "speed", "heading": "Decode", "value": "speed", "unit": "tokens/s", "better": "higher"}
STEP = {"key": "step", "heading": "Time per token", "value": "step", "unit": "s", "better": "lower"}
SIZE = {"key": "size", "heading": "Peak memory", "value": "size", "unit": "GB", "digits": 1}


def made(cells: list[Record], **section: Any) -> Table:
    content = {"title": "Mine", "rows": {"by": ["method"]}, "columns": [SPEED], **section}
    return build(table_spec("mine", content), cells, {}, {cell.key for cell in cells})


def wide_table() -> Table:
    """Two methods on two phones, three columns."""
    cells = [
        record(method, {"speed": speed, "step": 1 / speed, "size": 2.5}, labels={"device": device})
        for method, speed in (("std", 10.0), ("lever", 20.0))
        for device in ("OnePlus 12", "Xiaomi 14")
    ]
    return made(cells, rows={"by": ["method", "device"], "apart": True}, columns=[SPEED, STEP, SIZE])


def on_screen(table: Table, width: int) -> list[str]:
    text = io.StringIO()
    Console(width=width, file=text, color_system=None).print(to_screen(page(table)))
    return text.getvalue().splitlines()


@pytest.mark.parametrize(
    ("speeds", "column", "uncertainty", "best"),
    [
        ((10.0, 20.001, 20.0), {"digits": 3}, {}, [1]),
        ((10.0, 20.001, 20.0), {"digits": 2}, {}, []),  # a tie of figures without intervals
        ((10.0, 20.001, 20.0), {"digits": 2}, {"speed": (19.0, 21.0)}, [1, 2]),
        ((10.0, 20.0, 30.0), {"better": "lower"}, {}, [0]),
        ((10.0, 20.0, 30.0), {"better": ""}, {}, []),
        ((10.0, 10.0, 10.0), {}, {"speed": (9.0, 11.0)}, []),
    ],
)
def test_the_best_of_a_column_is_marked(
    speeds: tuple[float, ...], column: dict[str, Any], uncertainty: dict[str, Any], best: list[int]
) -> None:
    cells = [record(f"m{i}", {"speed": v}, uncertainty=uncertainty) for i, v in enumerate(speeds)]
    columns = [{**SPEED, **column}]
    table = made(cells, best=True, columns=columns)
    assert [i for i, row in enumerate(table.rows) if "best" in row.entries[0].marks] == best
    assert (" ★ |" in to_markdown(page(table), [])) == bool(best)
    assert not any(row.entries[0].marks for row in made(cells, columns=columns).rows)


def test_each_label_has_a_column() -> None:
    text = to_markdown(page(wide_table()), [])
    assert "| method | device | Decode (tokens/s) ↑ |" in text
    assert "| LEVER | OnePlus 12 | 20.00 |" in text


@pytest.mark.parametrize(("width", "parts"), [(100, 1), (64, 1), (48, 2)])
def test_a_screen_breaks_headings_before_it_divides_a_table(width: int, parts: int) -> None:
    """Each part names its rows, two of which are on a OnePlus 12."""
    shown = on_screen(wide_table(), width)
    assert max(map(len, shown)) <= width
    assert sum("OnePlus 12" in line for line in shown) == 2 * parts
    assert sum("20.00" in line for line in shown) == 2
    assert not any("…" in line for line in shown)


def test_of_a_long_table_the_screen_has_the_first_rows() -> None:
    cells = [record("std", {"speed": 1.0 + n}, labels={"n": f"{n:04}"}) for n in range(MOST_ROWS + 7)]
    shown = on_screen(made(cells, rows={"by": ["n"]}), 120)
    rows = [line.split()[0] for line in shown if len(line.split()) == 2 and line.split()[0].isdigit()]
    assert rows == [f"{n:04}" for n in range(MOST_ROWS)]
    assert "and 7 more rows, in the files" in shown


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
    assert decimals(load_metrics().find("flash_bytes_per_token"), [5.6e7, 2e9, None]) == 4, "0.0560 GB"
    assert decimals(load_metrics().find("prompts"), [2]) == 0


def test_a_text_that_another_arithmetic_computed_is_not_compared_with_the_targets() -> None:
    """The record keeps its figure; the table has that of the plain method alone, and says why."""
    std, mllm = (
        record(name, {"exact_match": 1.0}, config={"method": {"name": name}}) for name in ("std", "mllm_npu")
    )
    table = made([std, mllm], columns=[{"key": "exact", "heading": "Exact match", "value": "exact_match"}])
    assert {row.id: row.entries[0].ours for row in table.rows} == {"std": 1.0, "mllm_npu": None}
    (reason,) = [note for note in table.footnotes if note.startswith("mllm_npu computes with 8-bit")]
    assert "did not run" in reason
    assert "exact_match" not in known_values(mllm)
    assert mllm.figure("exact_match") == known_values(std)["exact_match"] == 1.0
