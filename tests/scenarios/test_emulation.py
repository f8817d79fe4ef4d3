"""A cell's machine: device and engine of its configuration, in its key and its record."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from repro.core.errors import InputError
from repro.device.engines.engine_file import OWN, read_engine, written_out
from repro.experiments.plan import cell_config
from repro.scenarios.emulation import EmulatedCell
from repro.scenarios.registry import made

BLANK = (
    "model@target=qwen1_5_1_8b_int8",
    "target.checkpoint=null",
    "prompt_tokens=8",
    "prompts=1",
    "max_tokens=2",
)
SLOW = {"value": 9, "unit": "ms", "source": "assumed", "note": "invented"}


def config(*overrides: str) -> dict[str, Any]:
    return cell_config(
        "device=xiaomi_14",
        "engine=own",
        "method=mnn_cpu",
        "model@draft=smollm2_135m_draft",
        *BLANK,
        *overrides,
    )


def test_the_own_engine_is_written_out_in_the_record() -> None:
    cell = made(config())
    assert cell.config["engine"] == written_out(read_engine("mllm_baselines"))
    assert cell.config["engine"]["extends"] == read_engine("snapdragon_kernels"), "not its name alone"
    again = made(copy.deepcopy(dict(cell.config)))
    assert again.asked == cell.asked
    assert again.config["engine"] == cell.config["engine"]


def test_a_record_of_before_there_were_engines_has_the_same_key() -> None:
    """Its device has all numbers, and its configuration no engine."""
    now = config()
    cell = EmulatedCell(now, "mnn_cpu")
    before = {name: value for name, value in now.items() if name != "engine"} | {"device": cell.described}
    old = EmulatedCell(before, "mnn_cpu")
    assert "engine" not in old.config
    assert old.described == cell.described
    assert old.machine() == cell.machine()
    assert made(before).asked == made(now).asked


def test_another_engine_is_another_machine_and_another_key() -> None:
    own = config()
    other = own | {"engine": {"name": "Slow", "processors": {"cpu": {"launch": SLOW}}}}
    assert made(other).asked["device"] != made(own).asked["device"]
    assert EmulatedCell(other, "mnn_cpu").machine().processors["cpu"].launch == pytest.approx(9e-3)


def test_an_engine_without_programs_runs_whatever_the_method_names() -> None:
    chosen = config() | {"device": {**config()["device"], "engine": "elastilm"}}
    with pytest.raises(InputError, match=r"program mnn_cpu; .* choose device=\w+ or xiaomi_14"):
        made(chosen | {"engine": {"name": OWN}})
    cell = EmulatedCell(chosen | {"engine": {"name": "Any", "reads": "serial"}}, "mnn_cpu")
    assert cell.program == ""
    assert cell.stand_in == "no public engine is mnn_cpu: figures are of Any"
    assert cell.machine().serial_reads


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("device.dram.bandwidth.value=-1", r"Xiaomi 14: dram\.bandwidth: -1 GB/s must be a number above 0"),
        (
            "device.processors.cpu.watts.value=-1",
            r"Xiaomi 14: processors\.cpu\.watts: -1 W must be a number from 0",
        ),
        ("device.power.idle.value=nan", r"Xiaomi 14: power\.idle: nan W must be a number .* and finite"),
        ("device.dram.budget.value=inf", r"Xiaomi 14: dram\.budget: inf GB must be a number .* and finite"),
        ("target.shape.layers=0", r"shape\.layers is 0"),
        ("target.shape.kv_heads=-1", r"shape\.kv_heads is -1"),
    ],
)
def test_a_number_out_of_range_is_found_before_any_work(setting: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        made(config(setting))


def test_an_engine_that_does_not_exist_is_named_with_the_choices() -> None:
    with pytest.raises(InputError, match=r"no engine 'llama'\. All .*repro list engines"):
        config("engine=llama")
