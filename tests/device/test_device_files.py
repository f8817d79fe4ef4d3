"""The device files: all parse, every number has a source, nothing is unphysical, and the fit holds."""

from __future__ import annotations

import copy
import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from repro import commands
from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.core.reading import read_mapping
from repro.device.cost import Machine, Processor
from repro.device.device_file import FACT_SOURCES, FITTED_TO, facts, machine
from repro.device.engines.engine_file import (
    device_file,
    device_files,
    device_with_engine,
    engine_files,
    with_engine,
)
from repro.device.op import CPU, FLASH, NPU, Op
from repro.records.identity import device_asked

DEVICES = {
    name: device_with_engine(name) if file.get("engine") else with_engine(file, None)
    for name, file in ((name, device_file(name)) for name in device_files())
}


EMULATED = sorted(name for name, device in DEVICES.items() if device["kind"] == "emulated")


OF_PAPERS = [name for name in EMULATED if DEVICES[name].get("papers")]


MACHINES = {name: machine(DEVICES[name]) for name in EMULATED}


CELLS = conf_dir() / "reference" / "cells.csv"


SLOW_STARTS = {"Jetson TX2", "Jetson Orin NX"}  # PyTorch before each layer, on a slow CPU: fitted


@pytest.fixture(scope="module")
def cells() -> dict[str, float]:
    """Published values by id; of a range the lower end, of a bound the bound."""
    if not CELLS.exists():
        pytest.skip("conf/reference/cells.csv is not in this checkout, so no cell id can be looked up")
    with CELLS.open(newline="", encoding="utf-8") as rows:
        ends = {row["id"]: row["value_low"] or row["value_high"] for row in csv.DictReader(rows)}
        return {name: float(value) for name, value in ends.items() if value}


def every_processor() -> list[Any]:
    return [
        pytest.param(m, name, processor, id=f"{device}-{name}")
        for device, m in MACHINES.items()
        for name, processor in m.processors.items()
    ]


def test_every_machine_of_the_five_papers_is_there() -> None:
    assert len(OF_PAPERS) >= 16
    for paper, count in {"edgellm": 6, "lever": 4, "mllm_npu": 2, "elastilm": 4, "ghidorah": 1}.items():
        assert sum(paper in DEVICES[name]["papers"] for name in OF_PAPERS) >= count, paper


@pytest.mark.parametrize("name", EMULATED)
def test_every_number_says_where_it_comes_from(name: str) -> None:
    found = list(facts(DEVICES[name]))
    assert len(found) >= (15 if name in OF_PAPERS else 10)
    for fact in found:
        assert fact.source in FACT_SOURCES
        assert fact.note or fact.cells, f"{name}: {fact.path} says neither place nor reason"


@pytest.mark.parametrize("name", EMULATED)
def test_fitted_cells_are_published_cells(name: str, cells: dict[str, float]) -> None:
    for fact in facts(DEVICES[name]):
        assert (fact.source == "fitted") == bool(fact.cells)
        assert set(fact.cells) <= set(cells), fact.path


GPU_WATTS = "mllm_npu.fig15.k60pro.1024.tflite_gpu"


@pytest.mark.parametrize("file", [*device_files().values(), *engine_files().values()], ids=lambda p: p.stem)
def test_no_assumed_number_is_read_off_a_figure(file: Path) -> None:
    """Such a number is fitted, with its cells. Sizes are chosen by what is left of a memory."""

    def assumed(part: Any, place: str = "") -> Iterator[str]:
        if isinstance(part, Mapping) and part.get("source") == "assumed" and "Fig" in part.get("note", ""):
            yield place
        elif isinstance(part, Mapping):
            for name, below in part.items():
                yield from assumed(below, f"{place}.{name}".lstrip("."))

    assert {*assumed(read_mapping(file))} <= {"dram.budget"}


def test_a_fit_that_is_named_later_leaves_keys_as_they_were() -> None:
    watts = {"value": 3.0, "unit": "W", "source": "fitted", FITTED_TO: [GPU_WATTS]}
    assert device_asked({"watts": watts}) == device_asked({"watts": {**watts, "source": "assumed"}})
    assert device_asked({"watts": watts}) == {"watts": {"value": 3.0, "unit": "W"}}
    (fact,) = facts({"processors": {"gpu": {"watts": watts}}})
    assert (fact.source, fact.cells) == ("fitted", (GPU_WATTS,))


@pytest.mark.parametrize(("m", "name", "processor"), every_processor())
def test_a_processor_is_physical(m: Machine, name: str, processor: Processor) -> None:
    assert set(processor.peak) >= ({"int8", "fp16"} if name == NPU else {"fp32", "fp16", "int8"})
    assert all(rate > 0 for rate in processor.peak.values())
    assert processor.peak["fp16"] >= processor.peak.get("fp32", 0.0)
    assert 0 < processor.bandwidth <= m.dram_bandwidth
    assert all(0 < share <= 1 for _, share in processor.efficiency.points)
    assert 0 <= processor.launch < (50e-3 if m.name in SLOW_STARTS else 1e-3)
    assert processor.launch or processor.start, "nothing starts at once"
    if processor.watts is not None:
        assert 0 <= processor.watts < 400
        assert processor.watts or m.idle_watts, "a device draws power"


@pytest.mark.parametrize(("m", "name", "processor"), every_processor())
def test_more_rows_never_take_less_time(m: Machine, name: str, processor: Processor) -> None:
    def seconds(rows: int) -> float:
        return processor.demand(Op(name, "layer", "", rows, flops=1e9 * rows, precision="int8")).work

    times = [seconds(rows) for rows in range(1, 600)]
    assert times == pytest.approx(sorted(times))


@pytest.mark.parametrize("name", EMULATED)
def test_memory_and_flash_are_physical(name: str) -> None:
    m, known = MACHINES[name], {fact.path: fact for fact in facts(DEVICES[name])}
    assert 0 < m.dram_budget <= known["dram.capacity"].value
    assert m.idle_watts is None or 0 < m.idle_watts < 100
    rates = [rate for _, rate in m.flash.bandwidth.points]
    assert rates == sorted(rates)
    assert 0 < rates[-1] < min(p.bandwidth for p in m.processors.values())
    assert 0 < m.flash.latency < 1e-3


class Shape(NamedTuple):
    """A model as LEVER runs it: its weights take 4.5 bits each (Q4_0)."""

    layers: int
    layer: int
    head: int

    @classmethod
    def of(cls, layers: int, hidden: int, key_value: int, ffn: int, vocabulary: int) -> Shape:
        layer = 2 * hidden * hidden + 2 * hidden * key_value + 3 * hidden * ffn
        return cls(layers, layer, vocabulary * hidden)


QWEN3_8B = Shape.of(36, 4096, 1024, 12288, 151936)


LLAMA_3_1_8B = Shape.of(32, 4096, 1024, 14336, 128256)


BYTES = 4.5 / 8


def busy(m: Machine, op: Op) -> float:
    demand = m.demand(op)
    return demand.launch + demand.work


def verify_ms(m: Machine, on: str, rows: int, shape: Shape = QWEN3_8B) -> float:
    """Computing one pass of `rows` rows, layers and output projection, everything in DRAM."""

    def linear(kind: str, weights: int) -> float:
        return busy(m, Op(on, kind, "", rows, 2.0 * weights * rows, weights * BYTES, precision="int8"))

    return (shape.layers * linear("layer", shape.layer) + linear("head", shape.head)) * 1e3


def stream_ms(m: Machine, shape: Shape = QWEN3_8B) -> float:
    """Reading every layer from flash, one request each; the output projection stays in DRAM."""
    return shape.layers * busy(m, Op(FLASH, "load", "", bytes=shape.layer * BYTES)) * 1e3


LEVERS = {
    name: machine(device_with_engine("oneplus_12", name)) for name in ("lever_overlapped", "lever_serial")
}


@pytest.mark.parametrize("engine", LEVERS)
@pytest.mark.parametrize(("budget", "on"), [(16, CPU), (32, CPU), (16, NPU), (32, NPU)])
def test_the_fit_meets_lever_table_2(budget: int, on: str, engine: str, cells: dict[str, float]) -> None:
    ours = verify_ms(LEVERS[engine], on, budget + 1)  # a budget leaves the root out
    assert ours == pytest.approx(cells[f"lever.table2.qwen3_8b.budget{budget}.verify"], rel=0.03)


@pytest.mark.parametrize("engine", LEVERS)
def test_the_fit_meets_lever_table_1(engine: str, cells: dict[str, float]) -> None:
    m = LEVERS[engine]
    assert verify_ms(m, CPU, 1) == pytest.approx(cells["lever.table1.qwen3_8b.compute"], rel=0.03)
    assert stream_ms(m) == pytest.approx(cells["lever.table1.qwen3_8b.io"], rel=0.03)
    total = cells["lever.table1.qwen3_8b.total"]
    assert verify_ms(m, CPU, 1) + stream_ms(m) == pytest.approx(total, rel=0.03)


def test_the_fit_predicts_the_other_8b_model(cells: dict[str, float]) -> None:
    """Llama-3.1-8B's rows of the same two tables, which nothing was fitted to."""
    m = MACHINES["oneplus_12"]
    for cell, ours in {
        "table1.llama_3_1_8b.compute": verify_ms(m, CPU, 1, LLAMA_3_1_8B),
        "table1.llama_3_1_8b.io": stream_ms(m, LLAMA_3_1_8B),
        "table2.llama_3_1_8b.budget16.verify": verify_ms(m, CPU, 17, LLAMA_3_1_8B),
        "table2.llama_3_1_8b.budget32.verify": verify_ms(m, CPU, 33, LLAMA_3_1_8B),
    }.items():
        assert ours == pytest.approx(cells[f"lever.{cell}"], rel=0.05), cell


BROKEN = [
    ("processors.cpu.watts", 4.0, "processors.cpu.watts: 4.0 is a bare number"),
    ("processors.cpu.watts.unit", "hp", "processors.cpu.watts: unit 'hp' is none of W"),
    ("processors.cpu.peak.int8.unit", "GB/s", "processors.cpu.peak.int8: unit 'GB/s' is none of TFLOP/s"),
    ("dram.budget.source", "hearsay", "dram.budget: source 'hearsay' is none of paper, datasheet"),
    ("processors.npu.efficiency.cells", [], "processors.npu.efficiency: a fitted number names"),
    ("flash.bandwidth.cells", "lever.x", "flash.bandwidth: cells 'lever.x' is no list"),
    ("flash.bandwidth.points", [[4096]], r"flash.bandwidth: \[\[4096\]\] is no number"),
    ("power.idle.value", "some", "power.idle: 'some' is no number"),
    (
        "processors.cpu.colour",
        {"value": 1, "source": "paper"},
        "processors.cpu.colour: unknown entry 'colour'",
    ),
    ("flash.bandwidth", None, "flash.bandwidth: None is a bare number"),
    (
        "flash.bandwidth",
        {"value": 1, "points": [[1, 1]], "unit": "GB/s", "source": "assumed"},
        "flash.bandwidth gives both value and points",
    ),
    ("dram", {}, "OnePlus 12: the device file lacks dram.bandwidth"),
    ("processors", {}, "OnePlus 12: the device file lacks processors"),
]


@pytest.mark.parametrize(("place", "wrong", "message"), BROKEN, ids=[broken[0] for broken in BROKEN])
def test_a_malformed_fact_is_named(place: str, wrong: Any, message: str) -> None:
    device = copy.deepcopy(DEVICES["oneplus_12"])
    *above, last = place.split(".")
    node = device
    for key in above:
        node = node[key]
    node[last] = wrong
    with pytest.raises(InputError, match=message):
        machine(device)


def counted(device: Mapping[str, Any], source: str) -> int:
    return sum(fact.source == source for fact in facts(device))


@pytest.mark.parametrize(("option", "source"), [("--assumed", "assumed"), ("--fitted", "fitted")])
def test_the_command_lists_every_fact_of_a_source(
    option: str, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run("device", [option, *EMULATED]) == 0
    total = sum(counted(DEVICES[name], source) for name in EMULATED)
    assert total > 0
    assert f" {total} facts" in capsys.readouterr().out


def test_the_command_lists_place_value_and_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run("device", ["--source", "paper", "jetson_tx2"]) == 0
    out = capsys.readouterr().out
    assert "dram.budget" in out
    assert "2.1 GB" in out
    assert "EdgeLLM sec. II-B" in out
    assert "power.idle" not in out


def test_the_command_says_on_which_rows_a_processor_s_numbers_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """8 Gen 3: phones.csv has 3 prompts and 5 decodings of QNN, no dense row of llama.cpp on the CPU."""
    assert commands.run("device", ["xiaomi_14", "oneplus_12", "--engine", "public"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "xiaomi_14, npu: qnn_npu: this chip's rows, 5 of decoding and 3 of prompts" in said
    assert any(
        line.startswith("xiaomi_14, cpu: llama_cpp_cpu: its class's, by rows of other chips") for line in said
    )


def test_the_summary_has_a_row_for_every_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run("device", []) == 0
    rows = {line.split()[1]: line for line in capsys.readouterr().out.splitlines() if line.startswith("│")}
    assert set(rows) >= set(EMULATED)
    assert "44.15" in rows["oneplus_12"]


def test_an_unknown_device_is_named_with_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run("device", ["oneplus12"]) == 2
    said = capsys.readouterr().err
    assert "there is no device 'oneplus12'" in said
    assert "Did you mean oneplus_12 or " in said


def test_an_engine_has_rates_of_its_own() -> None:
    own = {"cpu": {"bandwidth": {"value": 1, "unit": "GB/s", "source": "assumed"}}}
    device = {**DEVICES["xiaomi_14"], "engines": {"mine": own}}
    plain, mine = machine(device), machine(device, "mine")
    assert mine.processors["cpu"].bandwidth == 1e9
    assert mine.processors["cpu"].peak == plain.processors["cpu"].peak
    assert mine.processors["npu"] == plain.processors["npu"]
    assert plain == MACHINES["xiaomi_14"]
    with pytest.raises(InputError, match=r"no engine 'mime'\. Did you mean mine"):
        machine(device, "mime")
