"""By name alone: the engine and the format that a cell gets where nothing but names was said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from repro.core.errors import InputError
from repro.device.device_file import machine
from repro.device.engines.engine_file import device_file, device_with_engine, engine_of, read_engine
from repro.experiments.plan import cell_config
from repro.scenarios.registry import made


def cell(*overrides: str) -> Any:
    return made(cell_config("prompts=1", "max_tokens=8", *overrides))


@pytest.mark.parametrize(
    ("device", "method", "precision"),
    [
        ("xiaomi_14", "std", "q4_0"),
        ("jetson_orin_nx", "std", "q4_0"),
        ("rv1126b", "std", "w8a8"),
        ("xiaomi_14", "mllm_npu", "w8a8"),
        ("local_cpu", "std", None),
    ],
)
def test_a_format_is_the_engines_or_the_methods(device: str, method: str, precision: str | None) -> None:
    assert cell(f"device={device}", f"method={method}").config["target"]["precision"] == precision


def test_one_setting_changes_the_format_and_a_models_own_stays() -> None:
    assert cell("device=xiaomi_14", "method=std", "format=fp16").config["target"]["precision"] == "fp16"
    assert cell("device=xiaomi_14", "method=std", "format=computed").config["target"]["precision"] is None
    named = cell("device=xiaomi_14", "method=std", "format=fp16", "model@target=qwen1_5_1_8b_int8")
    assert named.config["target"]["precision"] == "int8"
    with pytest.raises(InputError, match="q4_0"):
        cell("device=xiaomi_14", "method=std", "format=q5")


def test_the_data_sheet_alone_is_the_chips() -> None:
    """8 Gen 3: HeteroInfer's 34 TOPS, where the phone's file has mllm-NPU's 73; both read 56 GB/s."""
    npu = cell("device=xiaomi_14", "method=std", "engine=datasheet").cell.machine().processors["npu"]
    assert (npu.peak["int8"], npu.bandwidth) == pytest.approx((34e12, 56e9))
    board = cell("device=jetson_orin_nx", "method=std", "engine=datasheet").cell.machine()
    assert board.processors["gpu"].bandwidth == pytest.approx(102.4e9), "128 bits of LPDDR5 at 6,400 MT/s"


@pytest.mark.parametrize(
    ("board", "chip"),
    [
        ("jetson_orin_nx", "orin_nx"),
        ("jetson_tx2", "tegra_x2"),
        ("xiaomi_14", "snapdragon_8_gen_3"),
        ("xiaomi_11", "snapdragon_8_gen_1"),
        ("xiaomi_10", "snapdragon_865"),
    ],
)
def test_a_board_and_its_chip_have_the_same_processors(board: str, chip: str) -> None:
    """Names of one chip: flash, memory and power are the board's, speed is the chip's."""
    one, other = (machine(device_with_engine(name, "public")) for name in (board, chip))
    assert {name: replace(used, watts=None) for name, used in one.processors.items()} == {
        name: replace(used, watts=None) for name, used in other.processors.items()
    }
    assert one.main == other.main
    assert one.flash != other.flash


@pytest.mark.parametrize(
    ("device", "engine", "numbers"),
    [
        ({"papers": []}, "public", "elastilm"),  # a user's own device names what runs on it
        ({"papers": ["elastilm"]}, "own", "elastilm"),
        ({"papers": ["elastilm"]}, "public", "llama_cpp_cpu"),
        ({"engine": ""}, "own", "llama_cpp_cpu"),
    ],
)
def test_a_device_is_used_as_its_file_says_and_a_papers_as_people_use_its_chip(
    device: dict[str, Any], engine: str, numbers: str
) -> None:
    file = {**device_file("xiaomi_14"), "engine": "elastilm"} | device
    chosen = engine_of(file, {"name": engine})
    assert chosen is not None
    assert read_engine(numbers)["name"] in chosen["name"]
