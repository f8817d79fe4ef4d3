"""The engines of README's and the comparisons' tables beside public rows; what is far from them is named."""

from __future__ import annotations

import csv
import re
from dataclasses import replace

import pytest

from repro.core.paths import conf_dir, project_root
from repro.device.cost import Machine
from repro.device.device_file import machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import device_with_engine
from repro.models.costs.model_cost import ModelCost, precision
from repro.models.runtime.placement import Placement
from repro.reports.marked_block import block
from workshop.fitting.measures import one_pass
from workshop.validation.baselines import BLOCK, README, USED, Pair, in_short, line, page_lines, pairs
from workshop.validation.phones.rows import shapes

PROCESSORS = ("cpu", "gpu", "npu")
PUBLISHED = {
    row["id"]: row
    for name in ("phones.csv", "phones_s23.csv")
    for row in csv.DictReader((conf_dir() / "reference" / name).open(encoding="utf-8"))
}
PAGE = project_root() / "results" / "validation" / "baselines" / "table.md"
COMMITTED = PAGE.with_name("pairs.csv")


@pytest.fixture(scope="module")
def compared() -> list[Pair]:
    return list(pairs())


def test_the_pages_and_the_table_are_todays(compared: list[Pair]) -> None:
    readme = (project_root() / README).read_text(encoding="utf-8")
    assert block(readme, BLOCK, README.name) == in_short(compared), (
        "run python -m workshop.validation baselines"
    )
    assert PAGE.read_text(encoding="utf-8").splitlines() == list(page_lines(compared))
    with COMMITTED.open(newline="", encoding="utf-8") as file:
        assert [*csv.reader(file)][1:] == [line(pair) for pair in compared]


def test_public_rates_are_the_rows_own(compared: list[Pair]) -> None:
    """Tokens a second as printed, or the prompt's tokens over the printed time to the first token."""
    for pair in compared:
        row = PUBLISHED[pair.quantity.row.id]
        if pair.phase == "decode":
            printed = float(row["decode_tok_s"])
        elif row["prefill_tok_s"]:
            printed = float(row["prefill_tok_s"])
        else:
            printed = int(row["prompt_tokens"] or 128) / float(row["first_token_s"])
        assert pair.public == pytest.approx(printed)
        assert row["apart"] in ("", "architecture")


@pytest.mark.parametrize(
    ("tables", "device", "row", "ratio"),
    [
        ("compare/agreement", "oneplus_12", "phone.snapdragon_8_gen_3.qnn_npu.llama_3_2_3b.w4a16.1", 6.73),
        (
            "compare/agreement",
            "xiaomi_11",
            "phone.snapdragon_8_gen_1.xnnpack_cpu.llama_3_8b.4_bit_g256_8da4w.1",
            10.45,
        ),
        (
            "compare/agreement",
            "jetson_orin_nx",
            "phone.orin_nx.llama_cpp_cuda.qwen2_5_coder_0_5b.q8_0.1",
            3.98,
        ),
        ("quickstart", "oneplus_12", "phone.snapdragon_8_gen_3.qnn_npu.llama_v2_7b_chat.w4a16.1", 22.0),
    ],
)
def test_papers_engines_are_as_far_as_reviewers_found(
    compared: list[Pair], tables: str, device: str, row: str, ratio: float
) -> None:
    """Computed by others from the engine files at 7491c825."""
    ratios = [
        pair.ratio
        for pair in compared
        if (pair.used.tables, pair.used.device, pair.quantity.row.id) == (tables, device, row)
    ]
    assert max(ratios) == pytest.approx(ratio, rel=0.01)


def test_every_device_of_the_comparisons_is_there() -> None:
    conf = conf_dir()
    for name in ("quickstart", "compare/phone", "compare/board", "compare/agreement"):
        text = (conf / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
        several = ", ".join(re.findall(r"setup: \[([\w, ]+)\]", text))
        for setup in {*re.findall(r"setup: (\w+)", text), *re.findall(r"\w+", several)}:
            text += (conf / "setup" / f"{setup}.yaml").read_text(encoding="utf-8")
        devices = {*re.findall(r"override /device: (\w+)", text)}
        assert devices == {used.device for used in USED if used.tables == name}


def test_every_paper_s_engine_of_the_comparisons_is_there() -> None:
    """Those that stand beside public ones, and the processor on which the quickstart's baselines verify."""
    for name in ("quickstart", "compare/phone", "compare/board"):
        text = (conf_dir() / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
        engines = {*re.findall(r"\bengine: (\w+)", text), *re.findall(r"override /engine: (\w+)", text)}
        classes = {engine for engine in engines if re.search(r"_(cpu|gpu|npu)$", engine)} - {"mllm_npu"}
        assert engines - classes <= {used.engine for used in USED if used.tables == name}
        for processor in re.findall(r"\bverifies: (cpu|gpu|npu)\b", text):
            assert any(processor in used.processors for used in USED if used.tables == name), processor


@pytest.mark.parametrize(("on", "head"), [(on, head) for on in PROCESSORS for head in PROCESSORS])
def test_a_token_takes_the_time_of_the_processor_of_its_layers(on: str, head: str) -> None:
    """LEVER's target runs on the NPU and its projection on the CPU; QNN's is 3 ms, llama.cpp's 4 to 8."""
    public = machine(device_with_engine("snapdragon_8_gen_3", "public"))
    free = replace(public, processors={p: replace(one, token=0.0) for p, one in public.processors.items()})
    cost = ModelCost(shapes()["qwen1_5_1_8b"], precision("q4_0"))

    def seconds(built: Machine) -> float:
        done = one_pass(EmulatedDevice(built), cost, 1, 128, Placement(on=on, head=head))
        return done.end - done.start

    least, most = {"cpu": (0.003, 0.006), "gpu": (0.005, 0.01), "npu": (0.002, 0.005)}[on]
    took = seconds(public) - seconds(free)
    assert least < took < most
    assert took == pytest.approx(public.processors[on].token)
