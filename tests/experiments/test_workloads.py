"""The workloads of EdgeLLM's Tables III and IV: what each chooses, and what overrides what.

LEVER's are in `test_lever_experiments.py`, Ghidorah's in `test_matched_heads.py`.
"""

import pytest

from repro import data
from repro.core.paths import conf_dir
from repro.experiments.plan import plain
from repro.reports.reference.reference import load_cells, select
from tiny_project import composed

CONTENT = {
    "mt5_iwslt17": ("jetson_tx2", "mT5-large", "mT5-small", "iwslt2017", "iwslt2017_de_en"),
    "mt5_squad": ("jetson_tx2", "mT5-large", "mT5-small", "squad", "squad"),
    "t5_cnn": ("jetson_orin_nx", "T5-large", "T5-small", "cnn_dailymail", "cnn_daily"),
    "t5_squad": ("jetson_orin_nx", "T5-large", "T5-small", "squad", "squad"),
    "bart_wmt14": ("jetson_tx2", "BART-large", "BART-base", "wmt14", "iwslt2017_de_en"),
    "gpt2_wikitext": ("jetson_orin_nx", "GPT-2-large", "GPT-2", "wikitext2", "cnn_daily"),
    "vicuna_parrot": ("xiaomi_10", "Vicuna-13B", "Vicuna-7B", "parrot", "iwslt2017_de_en"),
    "vicuna_wmt22_de_en": ("xiaomi_10", "Vicuna-13B", "Vicuna-7B", "wmt22_de_en", "iwslt2017_de_en"),
    "vicuna_wmt22_zh_en": ("xiaomi_10", "Vicuna-13B", "Vicuna-7B", "wmt22_zh_en", None),
    "llama2_cnn": ("xiaomi_11", "LLaMA-2-Chat-13B", "LLaMA-2-Chat-7B", "cnn_dailymail", "cnn_daily"),
    "llama2_squad": ("xiaomi_11", "LLaMA-2-Chat-13B", "LLaMA-2-Chat-7B", "squad", "squad"),
    "llama2_truthfulqa": ("xiaomi_11", "LLaMA-2-Chat-13B", "LLaMA-2-Chat-7B", "truthfulqa", "truthful_qa"),
}

ELSEWHERE = {
    **dict.fromkeys(("t5_cnn", "t5_squad", "gpt2_wikitext"), "jetson_tx2"),
    **dict.fromkeys(("llama2_cnn", "llama2_squad", "llama2_truthfulqa"), "xiaomi_10"),
    "mt5_iwslt17": "jetson_orin_nx",
    "vicuna_wmt22_de_en": "xiaomi_11",
}
"""Workloads that a figure runs on another device than Table III says, which their names end with."""


def elsewhere(name: str) -> str:
    return f"{name}_{ELSEWHERE[name].removeprefix('jetson_')}"


def test_there_is_one_for_every_row_of_table_iv() -> None:
    known = [path.stem for path in (conf_dir() / "setup").glob("*.yaml")]
    assert {*CONTENT, *map(elsewhere, ELSEWHERE)} <= set(known)
    cells = select(load_cells(), paper="edgellm", artifact="table4")
    assert len({(cell.model, cell.dataset) for cell in cells}) == len(CONTENT)


@pytest.mark.parametrize("name", CONTENT)
def test_what_it_chooses(name: str) -> None:
    config = plain(composed(f"setup={name}"))
    device, target, draft, dataset, match = CONTENT[name]
    expected = plain(composed(f"device={device}"))["device"]
    assert config["device"] == expected
    assert (config["target"]["name"], config["draft"]["name"]) == (target, draft)
    assert data.parse(config["dataset"]).name == dataset
    assert config["calibrate_draft_to"] == (match and f"edgellm.table1.{match}")
    assert config["calibrate_draft_to"] is None or config["calibrate_draft_to"] in load_cells()
    assert config["labels"] == {"workload": name}
    cut = {"article": 250} if dataset == "cnn_dailymail" else {}
    assert config["dataset"].get("max_words", {}) == cut


@pytest.mark.parametrize("name", ELSEWHERE)
def test_elsewhere_only_the_device_is_another(name: str) -> None:
    config = plain(composed(f"setup={elsewhere(name)}"))
    assert config["labels"] == {"workload": elsewhere(name)}
    here = plain(composed(f"setup={name}", f"device={ELSEWHERE[name]}"))
    assert {**config, "labels": {}} == {**here, "labels": {}}


@pytest.mark.parametrize("reverse", [False, True])
def test_what_is_asked_for_beside_it_comes_first(reverse: bool) -> None:
    asked = ["setup=mt5_iwslt17", "device=jetson_orin_nx", "model@draft=t5_small", "calibrate_draft_to=null"]
    config = plain(composed(*(reversed(asked) if reverse else asked)))
    assert config["device"]["name"] == "Jetson Orin NX"
    assert (config["target"]["name"], config["draft"]["name"]) == ("mT5-large", "T5-small")
    assert config["calibrate_draft_to"] is None
