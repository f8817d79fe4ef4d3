"""The papers' device and engine files say what their fits give, and nothing else is fitted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from math import log
from typing import Any

import pytest

from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.device.device_file import FITTED_TO, facts, machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import device_with_engine
from repro.device.op import NPU
from repro.models.runtime.placement import Placement
from workshop.fitting.device_fit import FitResult, differences, fit_device
from workshop.fitting.measures import model_cost, one_pass
from workshop.fitting.specification import FittedNumber, specification, specifications

REDMI = ("redmi_k60_champion", "redmi_k60_pro", "redmi_k70_pro")


@cache
def fitted(name: str) -> FitResult:
    return fit_device(specification(name))


@pytest.mark.parametrize("name", specifications())
def test_every_file_says_what_its_fit_gives(name: str) -> None:
    assert differences(fitted(name)) == []


@pytest.mark.parametrize(
    "name", ["jetson_tx2", "jetson_orin_nx", "xiaomi_10", "xiaomi_14", "oneplus_12", "lever_serial"]
)
def test_a_fit_meets_its_cells(name: str) -> None:
    result = fitted(name)
    for cell, value in result.fitted.items():
        assert value == pytest.approx(result.aims[cell], rel=0.03), cell


def fitted_to_papers(content: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """The places of facts that are fitted, but for those that the classes of engines give from phones."""
    for key, below in content.items():
        if isinstance(below, Mapping):
            yield from fitted_to_papers(below, f"{at}.{key}" if at else str(key))
    cells = content.get("cells") or content.get(FITTED_TO) or ()
    if content.get("source") == "fitted" and not all(cell.startswith("phone.") for cell in cells):
        yield at


def test_nothing_is_fitted_that_no_specification_fits() -> None:
    """Of the rest the files have the arithmetic; the variant anchored to mllm-NPU's rows is a study's."""
    numbers = {number.name for name in specifications() for number in specification(name).numbers}
    places = {re.sub(r"\[-?\d+\]$", "", name) for name in numbers}
    found = set()
    for folder in ("device", "engine"):
        for path in sorted((conf_dir() / folder).glob("*.yaml")):
            if path.stem == "mllm_npu_requests":  # an earlier fit, kept for the keys of ElastiLM's records
                continue
            found |= {f"{folder}/{path.stem}: {at}" for at in fitted_to_papers(read_mapping(path))}
    xavier, phone = "devices.Xavier.processors", "devices.Snapdragon 8 Gen 3"
    apart = {
        f"engine/ghidorah_padded: {xavier}.cpu.tile",
        f"engine/ghidorah_padded: {xavier}.gpu.tile",
        f"engine/ghidorah_padded: {xavier}.cpu.slower.sparse",
        f"engine/ghidorah_memory: {xavier}.cpu.bandwidth",
        f"engine/ghidorah_memory: {xavier}.gpu.bandwidth",
        "engine/edgellm: devices.Jetson Orin NX.processors.gpu.start.fp16",
        "engine/edgellm: devices.Jetson Orin NX.processors.gpu.start_exponent",
        f"engine/mllm_npu: {phone}.processors.npu.rate.int8",
        f"engine/mllm_npu: {phone}.processors.cpu.start.int8",  # llama.cpp's
        f"engine/mllm_npu: {phone}.programs.mnn_cpu.cpu.peak.int8",  # held at its bound
    }
    apart |= {  # read off a figure, by the arithmetic in their notes
        "engine/edgellm: dram.read_ahead",
        *(
            f"engine/elastilm: {chip}.processors.npu.efficiency"
            for chip in (phone, "devices.Snapdragon 8 Gen 2")
        ),
        *(f"device/{name}: processors.gpu.watts" for name in ("oneplus_12", "xiaomi_14", *REDMI)),
        *(f"device/{name}: processors.npu.peak.fp16" for name in ("xiaomi_14", *REDMI)),
    }
    variant = {f"engine/mllm_npu_anchored: {phone}.processors.npu.{one}.int8" for one in ("rate", "start")}
    assert found - places == apart | variant
    assert places <= found
    assert not [
        fact for fact in facts(device_with_engine("xiaomi_11", "edgellm_flat")) if fact.source == "fitted"
    ]


def test_only_baselines_and_single_passes_are_fitted_to() -> None:
    """Of mllm-NPU's latency table the rows of two models, of TFLite, which has neither, Gemma-2B's."""
    cells = {cell.id for name in specifications() for cell in specification(name).cells}
    table = {cell for cell in cells if re.match(r"mllm_npu\.table4|mllm_npu_v2\.table5", cell)}
    assert len(table) == 32 + 27 + 7  # requests; their prefills but for one; answers of Persona-Chat
    for cell in table:
        chosen = r"qwen1_5_1_8b\.(mlc|lcpp|mnn)|llama_2_7b\.(mlc|lcpp|mnn|pi)|gemma_2b\.tflite"
        assert re.fullmatch(rf".*\.({chosen})(\.prefill|\.decode)?", cell)


def test_numbers_of_one_mean_are_met_in_the_mean_of_logarithms() -> None:
    result = fitted("mllm_baselines_mnn")
    for group in ("small", "short", "long"):
        own = [cell.id for cell in result.specification.cells if cell.mean == group]
        misses = [log(result.fitted[one] / result.aims[one]) for one in own]
        assert sum(misses) / len(misses) == pytest.approx(0, abs=1e-3)
        assert max(map(abs, misses)) > 0.005, "no cell of its own is met"


def test_cells_that_no_value_meets_are_noticed() -> None:
    given = specification("jetson_tx2")
    launch, flash = given.numbers
    faster = FittedNumber(flash.file, flash.at, (1.0, 2.0), flash.restated)
    wrong = differences(fit_device(replace(given, numbers=(launch, faster))))
    place = "devices.Tegra X2.flash.bandwidth[-1]"
    assert f"engine/edgellm_flat: {place} ended at a bound of its search" in wrong


@pytest.mark.parametrize(("rows", "on", "computing"), [(1, "", 0.0966), (17, NPU, 0.817), (33, NPU, 1.229)])
def test_lever_s_serial_engine_adds_reads_to_what_is_computed(rows: int, on: str, computing: float) -> None:
    """Passes of Qwen3-8B: Table 1's one token, and Table 2's verifications with Table 1's reads."""
    machines = [
        machine(device_with_engine("oneplus_12", f"lever_{form}")) for form in ("serial", "overlapped")
    ]
    streamed = Placement(on=on, resident=0.0, prefetch=1)
    serial, overlapped = (
        one_pass(EmulatedDevice(each), model_cost("qwen3_8b_q4_0"), rows, placement=streamed)
        for each in machines
    )
    assert serial.end - serial.start == pytest.approx(0.9534 + computing, rel=0.01)
    assert serial.loading == pytest.approx(0.9534, rel=0.01)
    longer = max(0.9534, computing)
    assert 0.99 * longer < overlapped.end - overlapped.start < 1.1 * longer, "the head follows the last read"
