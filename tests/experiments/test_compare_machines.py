"""compare/phone and compare/board: a row is its system by name, costs have floors, absences are said."""

from __future__ import annotations

import csv
from functools import cache

import pytest

from committed_results import RESULTS, cells
from repro.core.paths import conf_dir
from repro.experiments.plan import plain, planning
from repro.scenarios.registry import made
from tiny_project import composed

TABLES = ("phone", "board")
BITS = 4.5
"""Of a weight in Q4_0: blocks of 32 with a scale of 16 bits."""

QWEN = 24 * (4 * 2048**2 + 3 * 2048 * 5504) + 151_936 * 2048
VICUNA = 32 * (4 * 4096**2 + 3 * 4096 * 11_008) + 32_000 * 4096
"""Weights of the layers and of the output projection."""

ALONE = {
    "phone": ("device=xiaomi_14", "model@target=qwen1_5_1_8b_chat", "model@draft=qwen1_5_0_5b_chat"),
    "board": ("device=jetson_orin_nx", "model@target=vicuna_7b_v1_3", "model@draft=vicuna_68m"),
}
NAMED = {"LEVER, reads overlapped": "lever_overlapped", "LEVER, reads then computing": "lever_serial"}
"""Engines whose files have another name."""

HEADS = {"phone": "qwen1_5_1_8b_medusa", "board": "vicuna_7b_v1_3_medusa"}


@cache
def lines(table: str) -> dict[tuple[str, str], dict[str, str]]:
    """The lines of a committed table's CSV by row and column."""
    with (RESULTS / "compare" / table / "table.csv").open(encoding="utf-8") as file:
        return {(line["id"], line["column"]): line for line in csv.DictReader(file)}


def figure(table: str, row: str, column: str) -> float:
    return float(lines(table)[row, column]["ours"])


def rows(table: str) -> list[str]:
    """The systems that ran."""
    return sorted({cell["labels"]["system"] for cell in cells(f"compare/{table}")})


def whole_rows(table: str) -> list[str]:
    """The systems that ran behind 1,024 tokens too."""
    return [row for row in rows(table) if lines(table)[row, "answer_1024"]["ours"]]


@pytest.mark.parametrize("table", TABLES)
def test_each_row_is_its_system_by_name(table: str) -> None:
    """Method, device, models, prompts: nothing else enters what the cell is asked."""
    checked = 0
    with planning(conf_dir()) as sweep:
        swept = [*map(sweep.cell, sweep.jobs([f"experiment=compare/{table}"]))]
    for config in swept:
        if config.get("service"):
            continue
        method, prompt = config["method"]["name"], config["prompt_tokens"]
        more = [f"model@draft={HEADS[table]}"] if method == "ghidorah" else []
        more += [f"resident={config['resident']}"] if config["resident"] is not None else []
        budget, engine = config["device"]["dram"]["budget"]["value"], config["engine"]
        more += [f"device.dram.budget.value={budget}"] if table == "board" else []
        more += [f"engine={NAMED.get(engine['name'], engine['name'])}"]
        more += [f"+engine.{word}={engine[word]}" for word in ("draft_prompt",) if word in engine]
        more += [f"++engine.verifies={engine['verifies']}"] if "verifies" in engine else []
        more += [f"format={config['format']}"] if config["format"] else []
        shared = ("dataset=humaneval_8shot", "prompts=5", "max_tokens=128", f"prompt_tokens={prompt}")
        alone = composed(f"method={method}", *ALONE[table], *shared, *more)
        assert made(config).asked == made(plain(alone)).asked, (method, prompt)
        checked += 1
    assert checked == {"phone": 78, "board": 54}[table]


@pytest.mark.parametrize("table", TABLES)
def test_a_longer_prompt_is_never_earlier_and_costs_no_less(table: str) -> None:
    for row in whole_rows(table):
        for name in ("answer", "answer_joules"):
            assert figure(table, row, f"{name}_1024") > figure(table, row, f"{name}_64"), (row, name)


@pytest.mark.parametrize("table", TABLES)
def test_the_whole_answer_has_no_less_than_its_first_token_and_its_decoding(table: str) -> None:
    """127 tokens at the decode speed after the first one; the prompt of a draft, if any, comes on top."""
    for row in whole_rows(table):
        parts = figure(table, row, "ttft_1024") + 127 / figure(table, row, "speed_1024")
        assert figure(table, row, "answer_1024") >= parts * (1 - 1e-6), row
        if row.startswith(("std", "mllm_npu", "elastilm", "flash_ar")):
            assert figure(table, row, "answer_1024") == pytest.approx(parts), row


@pytest.mark.parametrize(("table", "weights"), [("phone", QWEN), ("board", VICUNA)])
def test_who_holds_the_target_holds_its_weights(table: str, weights: int) -> None:
    for row in whole_rows(table):
        bits = 8 if row.startswith("mllm_npu") else 16 if row.startswith("elastilm") else BITS
        held_gb = figure(table, row, "memory")
        if "_streamed" in row:
            whole = {"flash_ar_streamed": "std"}.get(row, row.partition("_streamed")[0])
            assert held_gb < figure(table, whole, "memory"), row
        else:
            assert held_gb > weights * bits / 8e9, row


@pytest.mark.parametrize("table", TABLES)
def test_no_decoding_beats_the_bytes_that_it_must_read(table: str) -> None:
    """Accepted tokens share a reading of the weights, which cannot pass the bus faster than it takes."""
    bus, weights = {"phone": (76.8e9, QWEN), "board": (102.4e9, VICUNA)}[table]
    for row in whole_rows(table):
        if row.startswith("elastilm"):
            continue
        bits = 8 if row.startswith("mllm_npu") else BITS
        passes = figure(table, row, "speed_1024") / figure(table, row, "acceptance")
        assert passes * weights * bits / 8 < bus, row
