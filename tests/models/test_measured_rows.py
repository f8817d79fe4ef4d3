"""A machine of a known law is found again from its rows: what was measured as it was, the rest in a band."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from repro.commands import VERBS
from repro.core.errors import InputError
from repro.core.paths import conf_dir, project_root
from repro.device.device_file import facts, machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.draws import drawn
from repro.device.engines.engine_file import device_with_engine, with_engine
from repro.device.facts.holds import HOLDS_KEY, UNMEASURED, gaps, outside
from repro.experiments.composing import load_components
from repro.experiments.summaries import new_machine
from repro.models.calibration.passes import PassTimer
from repro.models.calibration.stated_facts import read_power_log
from repro.models.costs.model_cost import ModelCost, Shape, precision
from repro.models.forward.network import rows_of
from repro.models.tokens.prefix import Prefix

SHAPES = {
    name: Shape.parse(
        yaml.safe_load((conf_dir() / "model" / "shape" / f"{name}.yaml").read_text(encoding="utf-8"))
    )
    for name in ("qwen3_0_6b", "qwen3_4b")
}
FEW, MANY = (512,), (2, 4, 8, 32, 128, 512)
"""Prompts that are measured, of which the first leave wide gaps."""
BETWEEN = (2, 5, 9, 17, 40, 100, 300)
"""Rows of passes that are predicted."""


@dataclass(frozen=True)
class Law:
    """A processor that needs a start, then reads weights or computes rows in tiles, what takes longer."""

    start: float
    bandwidth: float
    rate: float
    tile: int = 32

    def seconds(self, shape: Shape, rows: int) -> float:
        """A pass over rows of a model in 4.5 bits."""
        tiled = ceil(rows / self.tile) * self.tile if rows > 1 else 1
        layers, head = shape.layers * shape.layer_weights, shape.head_weights
        read = (layers + head) * 4.5 / 8 / self.bandwidth
        return self.start + max(read, 2.0 * (tiled * layers + head) / self.rate)


CPU, GPU = Law(4e-3, 20e9, 250e9), Law(9e-3, 25e9, 900e9)
PHONE = {"cpu": CPU, "gpu": GPU}
BACKENDS = {"cpu": {"backends": "CPU"}, "gpu": {"backends": "OpenCL", "gpu_info": "Some GPU"}}


def bench(on: str, prompts: Sequence[int], models: Sequence[str] = tuple(SHAPES)) -> list[dict[str, Any]]:
    """What llama-bench writes of the phone, by one processor."""
    common = {"build_commit": "abc", "cpu_info": "Some Phone", "gpu_info": "", "n_gpu_layers": 99}
    common |= {"n_batch": 2048, "n_ubatch": 512, "n_threads": 4, **BACKENDS[on]}
    tests = []
    for name in models:
        shape = SHAPES[name]
        size = (shape.layers * shape.layer_weights + shape.head_weights) * 4.5 / 8
        model = {"model_type": f"qwen3 {name.removeprefix('qwen3_')} Q4_0", "model_size": size}
        model |= {"model_n_params": shape.parameters}
        one = PHONE[on].seconds(shape, 1)
        tests.append(common | model | {"n_prompt": 0, "n_gen": 8, "avg_ns": 8e9 * one})
        for rows in prompts:
            seconds = PHONE[on].seconds(shape, rows)
            tests.append(common | model | {"n_prompt": rows, "n_gen": 0, "avg_ns": 1e9 * seconds})
    return tests


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(new_machine, "answer_lines", lambda device, engine: [])
    for group in ("device", "engine"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    return tmp_path


def calibrated(folder: Path, *words: str) -> dict[str, Any]:
    """The device with its engine that the command makes."""
    VERBS["calibrate"]([*words, "--name", "Phone", "--conf", str(folder / "conf")])
    device, engine = (
        yaml.safe_load((folder / "conf" / group / "phone.yaml").read_text(encoding="utf-8"))
        for group in ("device", "engine")
    )
    return with_engine(device, engine)


def of_bench(
    folder: Path, *files: Sequence[Mapping[str, Any]], options: Sequence[str] = ()
) -> dict[str, Any]:
    paths = [folder / f"{i}.json" for i in range(len(files))]
    for path, tests in zip(paths, files, strict=True):
        path.write_text(json.dumps(tests), encoding="utf-8")
    return calibrated(folder, "--from-llama-bench", *map(str, paths), "--bandwidth", "40", *options)


def of_table(folder: Path, lines: Sequence[Mapping[str, object]], *options: str) -> dict[str, Any]:
    path = folder / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for line in lines for name in line)))
        writer.writeheader()
        writer.writerows(lines)
    return calibrated(folder, "--rows", str(path), *options)


def line(name: str, on: str = "cpu", **changed: object) -> dict[str, object]:
    """A row of the table of one model."""
    shape = SHAPES[name]
    speeds = {"decode_tok_s": 1 / PHONE[on].seconds(shape, 1)}
    speeds |= {"prefill_tok_s": 256 / PHONE[on].seconds(shape, 256)}
    about = {"device": "My phone", "processor": on, "shape": name, "quant": "Q4_0", "threads": 4}
    return {**about, "version": "b1", "prompt_tokens": 256, **speeds, **changed}


def seconds(described: Mapping[str, Any], rows: int, name: str = "qwen3_4b", on: str = "cpu") -> float:
    """An emulated pass."""
    device = EmulatedDevice(machine({**described, "main": on}))
    device.memory.budget = 1e12
    return PassTimer(device, ModelCost(SHAPES[name], precision("q4_0")), (0,)).time(rows, 0, True).seconds


def band(described: Mapping[str, Any], rows: int) -> tuple[float, float]:
    figures = [seconds(drawn(described, draw), rows) for draw in range(8)]
    return min(figures), max(figures)


def source(described: Mapping[str, Any], path: str) -> str:
    return next(fact.source for fact in facts(described) if fact.path == path)


@pytest.mark.parametrize("prompts", [FEW, (16, 512), MANY])
def test_measured_rows_are_met_and_others_lie_in_their_bands(folder: Path, prompts: tuple[int, ...]) -> None:
    described = of_bench(folder, bench("cpu", prompts))
    holds = described["processors"]["cpu"][HOLDS_KEY]
    assert holds["counts"] == [1, *prompts]
    for rows in (1, *prompts):
        assert seconds(described, rows) == pytest.approx(CPU.seconds(SHAPES["qwen3_4b"], rows), rel=0.02)
    for rows in set(BETWEEN) - {*prompts}:
        truth, (low, high) = CPU.seconds(SHAPES["qwen3_4b"], rows), band(described, rows)
        if sentences := outside(holds, {"rows": [rows]}):
            assert UNMEASURED in sentences[0]
            assert 0.98 * low <= truth <= 1.02 * high
            assert high > 2 * low
        else:
            assert seconds(described, rows) == pytest.approx(truth, rel=0.45), (
                "rows are computed in tiles of 32"
            )
    assert bool(gaps(holds)) == (prompts != MANY)


def test_a_count_beside_measured_ones_is_not_marked() -> None:
    holds = {"rows": [1, 512], "counts": [1, 4, 16, 512]}
    assert gaps(holds) == [(16, 512)]
    assert outside(holds, {"rows": [1, 3, 16, 512]}) == []
    assert outside(holds, {"rows": [1, 17, 300]}) == [f"17 to 300 {UNMEASURED} 16 and 512"]
    assert len(outside(holds, {"rows": [600]})) == 1
    with pytest.raises(InputError, match=r"holds.counts is \[4, 1\]; it must be a rising list"):
        machine({"name": "a", "processors": {"cpu": {HOLDS_KEY: {"counts": [4, 1]}}}})


def test_files_of_two_processors_and_two_models_make_one_device(folder: Path) -> None:
    files = [bench(on, MANY, [name]) for on in PHONE for name in SHAPES]
    described = of_bench(folder, *files)
    assert described["main"] == "gpu", "what generates fastest"
    for on, law in PHONE.items():
        for name, shape in SHAPES.items():
            for rows in (1, 8, 512):
                assert seconds(described, rows, name, on) == pytest.approx(law.seconds(shape, rows), rel=0.05)
    with pytest.raises(InputError, match=r"several machines \(cpu_info: Some Phone, Other\)"):
        of_bench(folder, bench("cpu", FEW), [{**test, "cpu_info": "Other"} for test in bench("gpu", FEW)])


def test_a_table_s_rows_are_met_on_each_processor(folder: Path) -> None:
    described = of_table(folder, [line(name, on) for name in SHAPES for on in PHONE])
    for on, law in PHONE.items():
        for name, shape in SHAPES.items():
            for rows in (1, 256):
                assert seconds(described, rows, name, on) == pytest.approx(law.seconds(shape, rows), rel=0.02)
    assert described["processors"]["cpu"]["threads"]["value"] == 4
    assert "threads" not in described["processors"]["gpu"]


def test_a_model_whose_shape_is_not_known_has_parameters_and_bits(folder: Path) -> None:
    changed = {
        "shape": "",
        "quant": "",
        "parameters": 4e9,
        "bits": 4.5,
        "prefill_tok_s": "",
        "decode_tok_s": 8,
    }
    described = of_table(folder, [line("qwen3_4b", **changed)])
    bandwidth = described["processors"]["cpu"]["bandwidth"]
    assert bandwidth["value"] == pytest.approx(4 * 4.5 / 8 * 8)
    assert source(described, "processors.cpu.peak.int8") == "assumed"


@pytest.mark.parametrize(("one", "many"), [(1.0, 1.0), (1.5, 0.8)])
def test_the_class_of_a_known_chip_is_scaled_to_few_rows(folder: Path, one: float, many: float) -> None:
    """Of a phone that takes `one` times its class's time for a row and `many` times for a prompt."""
    chip = device_with_engine("snapdragon_8_gen_3", "public")
    speeds = {"decode_tok_s": 1 / seconds(chip, 1) / one, "prefill_tok_s": 256 / seconds(chip, 256) / many}
    rows = [line("qwen3_4b", **speeds)] * 9
    described = of_table(folder, rows, "--device", "snapdragon_8_gen_3")
    assert seconds(described, 1, "qwen3_0_6b") == pytest.approx(
        one * seconds(chip, 1, "qwen3_0_6b"), rel=0.03
    )
    assert seconds(described, 256) == pytest.approx(many * seconds(chip, 256), rel=0.05)
    assert described["processors"].keys() >= {"cpu", "gpu", "npu"}, "those without rows are the chip's"
    assert described["processors"]["cpu"][HOLDS_KEY]["counts"] == [1, 256]
    assert "times as long by 9 generations" in described["processors"]["cpu"]["token"]["note"]
    like_one, like_many = (seconds(drawn(described, draw), 30) for draw in range(2))
    assert like_one == pytest.approx(seconds(described, 1), rel=0.3)
    assert like_many == pytest.approx(seconds(described, 256), rel=0.3)


def test_a_chip_s_class_gives_way_to_measured_prompts_of_two_models(folder: Path) -> None:
    described = of_bench(folder, bench("cpu", MANY), options=["--device", "snapdragon_8_gen_3"])
    assert seconds(described, 128) == pytest.approx(CPU.seconds(SHAPES["qwen3_4b"], 128), rel=0.02)
    assert described["processors"].keys() >= {"cpu", "gpu", "npu"}


# What a user states


def test_memory_flash_and_watts_are_measured_where_they_are_said(folder: Path) -> None:
    log = folder / "log.csv"
    with log.open("w", encoding="utf-8") as file:
        file.write("seconds,watts\n")
        for second in range(60):
            file.write(f"{second},{1.5 if second < 20 else 6.0 + 0.1 * (second % 3)}\n")
    power = read_power_log(log)
    assert (power.idle, power.busy) == (pytest.approx(1.5, abs=0.05), pytest.approx(6.1, abs=0.1))
    options = ["--memory", "16", "--flash", "3.5", "--watts", f"cpu={log}", "gpu=4"]
    described = of_bench(folder, bench("cpu", FEW), bench("gpu", FEW), options=options)
    values = {fact.path: (fact.value, fact.source) for fact in facts(described)}
    assert values["dram.capacity"] == (16e9, "measured")
    assert values["dram.budget"][0] == pytest.approx(12.8e9)
    assert values["flash.bandwidth"] == (3.5e9, "measured")
    assert values["power.idle"] == (pytest.approx(1.5, abs=0.05), "measured")
    assert values["processors.cpu.watts"] == (pytest.approx(4.6, abs=0.1), "measured")
    assert values["processors.gpu.watts"] == (pytest.approx(2.5, abs=0.1), "measured")


LINE = line("qwen3_4b")
BAD: list[tuple[list[dict[str, object]], str, str]] = [
    ([LINE], "--memory 0", "--memory is 0.0; it must be"),
    ([LINE], "--flash nan", "--flash is nan; it must be"),
    ([LINE], "--watts -3", "--watts is -3.0; it must be"),
    ([LINE], "--watts nowhere.csv", "--watts nowhere.csv: neither a number nor a file"),
    ([LINE], "--watts 0.5 --watts-idle 1", "0.5 W are not above 1 W at rest"),
    ([LINE], "--watts 4", "give --watts-idle"),
    ([LINE], "--watts npu=3", "there is no --watts: processor 'npu'"),
    ([LINE, line("qwen3_4b", "gpu")], "--watts 4", "it must say of which processor: gpu=4, cpu=4"),
    ([LINE], "--setting devise=a", "there is no --setting 'devise'. Did you mean device"),
    ([LINE], "--setting quant=q8_0", "the rows have quant Q4_0"),
    ([LINE], "--device bcm2713", "there is no device 'bcm2713'"),
    ([LINE], "--threads 3", "the file has tests of 4"),
    ([line("qwen3_4b", shape="qwen3_5b")], "", "line 2: shape 'qwen3_5b'"),
    ([line("qwen3_4b", shape="")], "", "line 2 has neither a shape nor parameters"),
    ([line("qwen3_4b", processor="tpu")], "", "line 2: processor 'tpu'"),
    ([line("qwen3_4b", quant="what")], "", "quant is 'what'; give bits, or one of"),
    ([line("qwen3_4b", decode_tok_s="fast")], "", "decode_tok_s is 'fast'; it must be a number above 0"),
    ([line("qwen3_4b", decode_tok_s="", prefill_tok_s="")], "", "neither prefill_tok_s nor decode_tok_s"),
    ([line("qwen3_4b", prompt_tokens="")], "", "prefill_tok_s needs prompt_tokens"),
    ([line("qwen3_4b", decode_toks=3)], "", "there is no column of"),
    (
        [LINE, line("qwen3_0_6b", version="b2")],
        "",
        'several values of version (b1, b2); choose one, as --setting "',
    ),
    ([LINE, line("qwen3_0_6b", quant="Q8_0")], "", "several values of quant (Q4_0, Q8_0)"),
    ([LINE, line("qwen3_0_6b", device="Other")], "", "the rows are of several devices (My phone, Other)"),
]


@pytest.mark.parametrize(("lines", "options", "said"), BAD, ids=[said for _, _, said in BAD])
def test_bad_rows_and_options_get_one_sentence(
    folder: Path, lines: list[dict[str, object]], options: str, said: str
) -> None:
    with pytest.raises(InputError) as stopped:
        of_table(folder, lines, *options.split())
    assert said in str(stopped.value)
    assert "\n" not in str(stopped.value)
    assert not [*(folder / "conf").rglob("*.yaml")]


def test_a_log_without_two_parts_is_refused(folder: Path) -> None:
    (folder / "flat.csv").write_text("seconds,watts\n0,4\n5,4.1\n9,4\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"between 4.* and 4.* W, so that work and rest are not told apart"):
        read_power_log(folder / "flat.csv")
    for text in ("seconds,watts\n0,4\n0,9\n", "seconds\n0\n", "", "seconds,watts\n0,a\n"):
        (folder / "bad.csv").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match="seconds"):
            read_power_log(folder / "bad.csv")


# What the answer ends with


def test_what_the_validation_has_is_said_and_what_it_lacks_too(tmp_path: Path) -> None:
    path = tmp_path / new_machine.VALIDATION
    path.parent.mkdir(parents=True)
    path.write_text(
        'rows,of,n,"median error, %"\n'
        '"a chip that nobody measured, iPhones",decode,20,38.0\n'
        '"a chip that nobody measured, boards",decode,20,24.5\n'
        '"2 rows of the chip, iPhones",prefill,20,8.0\n',
        encoding="utf-8",
    )
    none, two, nine = new_machine.expected_errors(tmp_path)
    assert none.endswith("no rows of the chip and its engine, by kind of device: decode 24.5 to 38%")
    assert two.endswith("2 rows of the chip and its engine, by kind of device: prefill 8%")
    assert nine.endswith("no committed validation says")
    assert all("no committed" in sentence for sentence in new_machine.expected_errors(tmp_path / "none"))


def test_the_fastest_method_is_open_where_rows_were_not_measured(folder: Path) -> None:
    """A cycle of Chain-SD is a pass over nine rows, which two sizes of prompt say nothing of."""
    load_components()
    few, many = (
        new_machine.fastest_method(of_bench(folder, bench("cpu", rows))) for rows in ((16, 512), MANY)
    )
    assert few.startswith("Std is fastest (8.5 tokens/s")
    assert few.partition("; open against ")[2].partition(";")[0] == "LEVER and Chain-SD"
    assert many.startswith("Std is fastest (8.5 tokens/s")
    assert "open" not in many


def test_a_draft_agrees_as_often_as_it_should() -> None:
    texts = [Prefix.of((1, number)) for number in range(2000)]
    first_choices = [row.choice for row in rows_of(new_machine.AgreeingNetwork(0.8), texts)]
    assert np.mean(np.array(first_choices) == 0) == pytest.approx(0.8, abs=0.03)


def test_the_walk_in_the_page_makes_a_board_and_a_phone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project_root())
    page = (project_root() / "docs" / "emulator.md").read_text(encoding="utf-8")
    walk = page.partition("\n## Describe a machine\n")[2].partition("\n## ")[0]
    commands = [shlex.split(text) for text in re.findall(r"^ *repro calibrate (.*)$", walk, re.MULTILINE)]
    assert len(commands) == 2
    for words in commands:
        VERBS["calibrate"]([*words, "--conf", str(folder / "conf")])
    files = {
        path: yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in sorted((folder / "conf").rglob("*.yaml"))
    }
    assert [path.stem for path in files] == ["my_board", "my_phone"] * 2
    board, phone, board_engine, phone_engine = files.values()
    assert source(with_engine(board, board_engine), "flash.bandwidth") == "measured"
    assert 128 / seconds(with_engine(phone, phone_engine), 128) == pytest.approx(34, rel=0.15)
    assert set(phone["processors"]) > {"cpu", "gpu"}, "the chip has an NPU"
