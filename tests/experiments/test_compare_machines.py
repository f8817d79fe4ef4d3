"""compare/phone and compare/board: a row is its system by name."""

from __future__ import annotations

import pytest

from repro.core.paths import conf_dir
from repro.experiments.plan import plain, planning
from repro.scenarios.registry import made
from tiny_project import composed

TABLES = ("phone", "board")
ALONE = {
    "phone": ("device=xiaomi_14", "model@target=qwen1_5_1_8b_chat", "model@draft=qwen1_5_0_5b_chat"),
    "board": ("device=jetson_orin_nx", "model@target=vicuna_7b_v1_3", "model@draft=vicuna_68m"),
}
NAMED = {"LEVER, reads overlapped": "lever_overlapped", "LEVER, reads then computing": "lever_serial"}
"""Engines whose files have another name."""

HEADS = {"phone": "qwen1_5_1_8b_medusa", "board": "vicuna_7b_v1_3_medusa"}


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
