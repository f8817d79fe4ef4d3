"""Fits of device files by specifications: the committed numbers come out, and changed ones are noticed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.device.device_file import machine
from repro.device.engines.engine_file import device_with_engine
from workshop.fitting import device_fit
from workshop.fitting.__main__ import main
from workshop.fitting.device_fit import FitResult, differences, fit_device, published
from workshop.fitting.measures import MEASURES, measure
from workshop.fitting.specification import (
    FittedNumber,
    changed_text,
    conf_file,
    leaf,
    number_at,
    specification,
    specifications,
    with_number,
)


@pytest.fixture(scope="module")
def tx2() -> FitResult:
    return fit_device(specification("jetson_tx2"))


def test_the_committed_numbers_come_out(tx2: FitResult) -> None:
    assert differences(tx2) == []
    assert len(tx2.solution.values) == 2


def test_milliseconds_are_seconds_in_a_fit_and_a_bound_is_no_aim() -> None:
    assert published("lever.table1.qwen3_8b.compute") == pytest.approx(0.0966)
    with pytest.raises(InputError, match="is a bound"):
        published("mllm_npu.abstract.prefill_throughput")


def test_a_changed_number_and_a_foreign_cell_are_noticed(
    tx2: FitResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = device_fit.contents(tx2.specification)
    launch = tx2.specification.numbers[0]
    changed = with_number(files[launch.file], launch.at, 40.0)
    leaf(changed, launch.at)[0]["cells"] = ["edgellm.fig5.nav_reduction"]
    monkeypatch.setattr(device_fit, "contents", lambda given: {launch.file: changed})
    wrong = differences(tx2)
    assert any("launch is 40; the fit gives 32.3" in sentence for sentence in wrong)
    assert any("edgellm.fig5.nav_reduction, to which it is not fitted" in sentence for sentence in wrong)


@pytest.mark.quick
def test_every_specification_names_files_cells_and_measures() -> None:
    assert {"jetson_tx2", "jetson_orin_nx", "xiaomi_10"} <= set(specifications())
    for name in specifications():
        given = specification(name)
        for number in given.numbers:
            low, high = number.between
            assert (
                low
                <= number_at(yaml.safe_load(conf_file(number.file).read_text(encoding="utf-8")), number.at)
                <= high
            )
        for cell in given.cells:
            assert published(cell.id) > 0
            assert cell.measure in MEASURES


def test_wrong_names_list_the_choices() -> None:
    with pytest.raises(InputError, match="jetson_tx2"):
        specification("jetson_tx3")
    with pytest.raises(InputError, match="pass_seconds"):
        measure("pass_second", {})
    with pytest.raises(InputError, match="pass_seconds"):
        measure("pass_seconds", {"modell": "gpt2"})
    with pytest.raises(InputError, match="rising"):
        FittedNumber("device/x", "a.b", (2.0, 1.0))


def test_a_product_takes_its_start_and_the_longer_of_computing_and_reading() -> None:
    on = machine(device_with_engine("xiaomi_14", "mllm_npu"))
    start = on.processors["npu"].start["int8"].at(64)
    for rows, seconds in ((64, 2048 * 8192 / 14.6e9), (512, 2 * 512 * 2048 * 8192 / 4.58e12)):
        given = {"rows": rows, "inputs": 2048, "outputs": 8192}
        assert measure("product_seconds", given)(on) == pytest.approx(start + seconds)


def test_a_cell_over_names_stands_for_one_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (conf_dir() / "fit" / "mllm_npu_mnn.yaml").read_text(encoding="utf-8")
    cells = specification("mllm_npu_mnn").cells
    assert [cell.id for cell in cells[:3]] == [
        "mllm_npu_v2.table5.2wiki.qwen1_5_1_8b.mnn.prefill",
        "mllm_npu_v2.table5.triviaqa.qwen1_5_1_8b.mnn.prefill",
        "mllm_npu_v2.table5.clock.qwen1_5_1_8b.mnn.prefill",
    ]
    assert cells[1].given == {"method": "mnn_cpu", "model": "qwen1_5_1_8b_int8", "setup": "mllm_triviaqa"}
    (tmp_path / "fit").mkdir()
    monkeypatch.setattr("workshop.fitting.specification.conf_dir", lambda: tmp_path)
    for change, said in (
        (("{dataset}.", "{data}."), r"name in braces 'data'.*dataset"),
        (("{dataset}.", "2wiki."), "has the cell mllm_npu_v2.table5.2wiki.qwen1_5_1_8b.mnn.prefill twice"),
    ):
        (tmp_path / "fit" / "wrong.yaml").write_text(text.replace(*change), encoding="utf-8")
        with pytest.raises(InputError, match=said):
            specification("wrong")


def test_the_command_checks_writes_and_names_choices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["jetson_orin_nx", "--check"]) == 0
    assert main(["jetson_orin"]) == 2
    assert "jetson_orin_nx" in capsys.readouterr().err
    for folder in ("device", "engine"):
        shutil.copytree(conf_dir() / folder, tmp_path / folder)
    copy, launch = tmp_path / "engine" / "edgellm_flat.yaml", "devices.Jetson Orin NX.processors.gpu.launch"
    copy.write_text(changed_text(copy.read_text(encoding="utf-8"), launch, 6.0), encoding="utf-8")
    second, start = tmp_path / "engine" / "edgellm.yaml", "devices.Jetson Orin NX.processors.gpu.start.fp16"
    second.write_text(changed_text(second.read_text(encoding="utf-8"), start, 6.0), encoding="utf-8")
    for module in ("__main__", "device_fit"):
        monkeypatch.setattr(f"workshop.fitting.{module}.conf_file", lambda name: tmp_path / f"{name}.yaml")
    assert main(["jetson_orin_nx", "--check"]) == 1
    assert "launch is 6; the fit gives 5.31" in capsys.readouterr().err
    assert main(["jetson_orin_nx", "--write"]) == 0
    assert number_at(yaml.safe_load(copy.read_text(encoding="utf-8")), launch) == 5.31
    assert number_at(yaml.safe_load(second.read_text(encoding="utf-8")), start) == 5.31, (
        "it follows the fitted one"
    )


def test_edgellm_s_engine_meets_the_passes_that_it_is_fitted_to() -> None:
    """Fig. 20's passes as in its first form; ten rows cost what Fig. 9(a) or Fig. 5 allows."""
    tx2, flat = (machine(device_with_engine("jetson_tx2", engine)) for engine in ("edgellm", "edgellm_flat"))
    for model, placement, rows in (
        ("mt5_small", "resident", 1),
        ("gpt2", "resident", 1),
        ("mt5_large", "pipelined", 14),
        ("gpt2_large", "pipelined", 14),
    ):
        passed = measure("pass_seconds", {"model": model, "placement": placement, "rows": rows})
        assert passed(tx2) == pytest.approx(passed(flat), rel=0.03)
    grown, together = measure("rows_growth", {"model": "gpt2"}), {"model": "mt5_large"}
    assert grown(flat) == pytest.approx(1.0, abs=0.01)
    assert grown(tx2) == pytest.approx(2.6, rel=0.02)
    assert measure("verification_speedup", together)(tx2) == pytest.approx(8.5, rel=0.005)
    orin = machine(device_with_engine("jetson_orin_16gb", "edgellm"))
    assert measure("rows_growth", {"model": "llama_2_7b_chat"})(orin) == pytest.approx(9.1, rel=0.005)
    nx = machine(device_with_engine("jetson_orin_nx", "edgellm"))
    assert 8.5 <= measure("verification_speedup", together)(nx) <= 9.9
    assert measure("rows_growth", {"model": "gpt2"})(nx) == pytest.approx(9.1, rel=0.05)


def test_ghidorah_s_board_bound_by_memory_is_flat_where_the_paper_says() -> None:
    """As long with 4 rows as with 64 on the GPU and with 16 on the CPU, and within 3% of padded passes."""
    padded, memory = (machine(device_with_engine("jetson_xavier_nx", e)) for e in ("own", "ghidorah_memory"))
    for on, widest in (("gpu", 64), ("cpu", 16)):
        few, many, more = (
            measure("pass_seconds", {"model": "vicuna_7b_fp16", "rows": rows})(replace(memory, main=on))
            for rows in (4, widest, 2 * widest)
        )
        first = measure("pass_seconds", {"model": "vicuna_7b_fp16", "rows": 4})(replace(padded, main=on))
        assert few == pytest.approx(many, rel=0.03)
        assert few == pytest.approx(first, rel=0.03)
        assert more == pytest.approx(2 * many, rel=0.03)
