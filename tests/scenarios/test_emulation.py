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


def test_an_engine_without_programs_runs_whatever_the_method_names() -> None:
    chosen = config() | {"device": {**config()["device"], "engine": "elastilm"}}
    with pytest.raises(InputError, match=r"program mnn_cpu; .* choose device=\w+ or xiaomi_14"):
        made(chosen | {"engine": {"name": OWN}})
    cell = EmulatedCell(chosen | {"engine": {"name": "Any", "reads": "serial"}}, "mnn_cpu")
    assert cell.program == ""
    assert cell.stand_in == "no public engine is mnn_cpu: figures are of Any"
    assert cell.machine().serial_reads
