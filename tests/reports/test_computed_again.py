"""What committed pages say, computed again from the figures beside them, as a hostile reader would.

That the pages are what the code makes of the tables, test_pages.py says.
"""

from __future__ import annotations

import csv

import pandas as pd
import pytest

from committed_results import RESULTS
from repro.records.record import Record
from repro.records.results import open_results
from repro.reports.files import ALTERED_MARK
from repro.reports.spec.expand import expand
from repro.reports.spec.experiment import experiment_file
from repro.reports.spec.spec import ColumnSpec
from repro.reports.tables.build import SHORT_LENGTH
from scripts.equal_workloads import differences

ALL = "all relative"


def page_tables() -> dict[str, list[dict[str, str]]]:
    """The lines of each table of `fidelity.md`, by its first two headings."""
    tables: dict[str, list[dict[str, str]]] = {}
    headings: list[str] = []
    for text in (RESULTS / "fidelity.md").read_text(encoding="utf-8").splitlines():
        parts = [part.strip() for part in text.strip("|").split("|")] if text.startswith("|") else []
        if not parts:
            headings = []
        elif not headings:
            headings = [name if name not in parts[:i] else f"{name} 2" for i, name in enumerate(parts)]
            tables[", ".join(headings[:2])] = []
        elif set(text) != {"|", "-"}:
            tables[", ".join(headings[:2])].append(dict(zip(headings, parts, strict=True)))
    return tables


PAGE = page_tables()
KINDS = [line for line in PAGE["paper, kind"] if line["kind"] != "accuracies"]


def errors(paper: str) -> pd.DataFrame:
    """The figures with a relative error that can miss, those set aside with them, by reference."""
    lines = pd.read_csv(RESULTS / paper / "errors" / "table.csv").set_index("reference")
    can_miss = lines["group"].isin(["relative", "contradicted"]) & lines["error"].notna()
    return lines[can_miss & (lines["in_points"] == 0)]


def size(lines: pd.DataFrame, field: str = "error") -> float:
    return float(lines[field].abs().median())


def skill(lines: pd.DataFrame) -> float:
    """How much nearer ours are than the trivial rule, where there is one."""
    lines = lines[lines["trivial_error"].notna()]
    return 1 - size(lines) / size(lines, "trivial_error")


@pytest.mark.parametrize("line", KINDS, ids=lambda line: f"{line['paper']}, {line['kind']}")
def test_a_kind_has_the_medians_of_its_figures(line: dict[str, str]) -> None:
    figures = errors(line["paper"])
    figures = figures if line["kind"] == ALL else figures[figures["family"] == line["kind"]]
    assert (line["n"], line["median"]) == (str(len(figures)), f"{size(figures):.1%}")
    kept = figures[figures["group"] == "relative"]
    without = f"{size(kept):.1%} ({len(kept)})" if len(kept) < len(figures) else ""
    assert line["without the set aside"] == without
    if line["skill"] and line["kind"] != ALL:
        assert float(line["skill"]) == pytest.approx(skill(figures), abs=5.1e-3)


def test_mllm_npu_s_table_4_loses_to_the_nearest_fitted_request() -> None:
    """13.2% of 56 beside 11.7%; its baselines 11.7 beside 9.7, itself 15.9 beside 19.3."""
    table4 = errors("mllm_npu").filter(like="mllm_npu.table4.", axis="index")
    is_own = table4.index.str.endswith(".ours")
    assert {*table4["rule"]} == {"nearest"}
    assert (len(table4), is_own.sum()) == (56, 20)
    assert size(table4, "trivial_error") == pytest.approx(0.117, abs=5e-4)
    found = [skill(part) for part in (table4, table4[~is_own], table4[is_own])]
    assert found == pytest.approx([-0.13, -0.21, 0.18], abs=5e-3)


@pytest.mark.parametrize(
    ("paper", "table", "orders"),
    [
        ("edgellm", "table4", ("19 of 36", "25 of 36", "", "")),  # 144 pairs hold a lossless text
        ("lever", "table5", ("14 of 18", "18 of 18", "4 of 6", "6 of 6")),  # without means
        ("mllm_npu", "table4", ("116 of 116", "116 of 116", "20 of 20", "20 of 20")),
    ],
)
def test_orders_stand_beside_one_rate_an_engine(paper: str, table: str, orders: tuple[str, ...]) -> None:
    (line,) = (line for line in PAGE["paper, table"] if (line["paper"], line["table"]) == (paper, table))
    names = ("pairs agree", "by one rate", "own system first", "by one rate 2")
    assert tuple(line[name] for name in names) == orders


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
        content = experiment_file(name.partition(ALTERED_MARK)[0])
        records = results.records(results.members(name))
        drafting = [r for r in records if r.done and "draft" in r.provenance.inputs]
        if not drafting or "title" not in content.get("table", {}):
            continue
        shown = shown_values(name, expand(content["name"], content["table"], content).columns)
        missing: set[str] = set()
        for cell in drafting:
            if {"ttft", "prefill_seconds", "decode_seconds"} <= cell.values.keys():
                missing |= left_out(cell, shown.get(cell.key[:SHORT_LENGTH], set()))
        text = (RESULTS / name / "table.md").read_text(encoding="utf-8")
        notes = [line.partition(LINE)[2] for line in text.splitlines() if LINE in line]
        parts = {part.partition(" (")[0] for note in notes for part in note.split("; ")}
        assert parts == missing, name
        checked, said = checked + 1, said + bool(notes)
    assert checked > 30
    assert said > 10


def test_every_difference_has_a_footnote() -> None:
    """One is that of LEVER on the OnePlus 12, Qwen3-8B, HumanEval, on the first page and in Fig. 10."""
    found = differences(RESULTS)
    assert [str(each) for each in found if not each.explained] == []
    workload = " lever OnePlus 12 Qwen3-8B humaneval"
    (quickstart,) = (
        each
        for each in found
        if ("quickstart",) in each.tables and "lever/fig10" in each.tables[0] and workload in str(each)
    )
    assert quickstart.settings == ("draft", "engine", "max_tokens", "prompts")
