"""Fits of device files by specifications: the committed numbers come out, and changed ones are noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.device.cost import FREE
from repro.fit import main
from repro.fitting import device_fit
from repro.fitting.device_fit import FitResult, differences, fit_device, published, scaled
from repro.fitting.fact_text import changed_text
from repro.fitting.measures import MEASURES, measure, model_cost, one_pass
from repro.fitting.specification import (
    FittedCell,
    FittedNumber,
    conf_file,
    leaf,
    number_at,
    specification,
    specifications,
    with_number,
)

TEXT = """# a comment
processors:
  gpu:
    launch: {value: 32.3, unit: ms, source: fitted, cells: [a]}  # kept
flash:
  bandwidth: {points: [[4096, 0.03], [524288, 0.191]], unit: GB/s}
"""


@pytest.fixture(scope="module")
def tx2() -> FitResult:
    return fit_device(specification("jetson_tx2"))


def test_the_committed_numbers_come_out(tx2: FitResult) -> None:
    assert differences(tx2) == []
    assert len(tx2.solution.values) == 2


def test_four_cells_determine_two_numbers_with_any_one_left_out(tx2: FitResult) -> None:
    """EdgeLLM's Fig. 20: two drafts give the launch, two targets the flash."""
    assert set(tx2.left_out) == {cell.id for cell in tx2.specification.cells}
    for cell, value in tx2.left_out.items():
        assert value == pytest.approx(published(cell), rel=0.06)
    for cell, value in tx2.trivial.items():
        assert abs(value / published(cell) - 1) > 0.4, "weights alone would do"


def test_a_changed_number_and_a_foreign_cell_are_noticed(
    tx2: FitResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = device_fit.contents(tx2.specification)
    changed = with_number(files["device/jetson_tx2"], "processors.gpu.launch", 40.0)
    leaf(changed, "processors.gpu.launch")[0]["cells"] = ["edgellm.fig5.nav_reduction"]
    monkeypatch.setattr(device_fit, "contents", lambda given: {"device/jetson_tx2": changed})
    wrong = differences(tx2)
    assert any("launch is 40; the fit gives 32.3" in sentence for sentence in wrong)
    assert any("edgellm.fig5.nav_reduction, to which it is not fitted" in sentence for sentence in wrong)


def test_a_number_is_changed_in_place() -> None:
    changed = changed_text(TEXT, "processors.gpu.launch", 41.234)
    assert changed == TEXT.replace("32.3", "41.2")
    changed = changed_text(TEXT, "flash.bandwidth[-1]", 0.25)
    assert changed == TEXT.replace("0.191", "0.25")
    assert number_at(yaml.safe_load(changed), "flash.bandwidth[-1]") == 0.25
    assert (
        number_at(with_number(yaml.safe_load(TEXT), "flash.bandwidth[0]", 0.5), "flash.bandwidth[0]") == 0.5
    )


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("processors.npu.launch", "no 'npu'"),
        ("processors.gpu", "is no number"),
        ("processors.gpu.launch[0]", "is no curve"),
    ],
)
def test_a_place_without_a_number_is_named(at: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        number_at(yaml.safe_load(TEXT), at)


def test_every_specification_names_files_cells_and_measures() -> None:
    assert {"jetson_tx2", "jetson_orin_nx", "xiaomi_10"} <= set(specifications())
    for name in specifications():
        given = specification(name)
        for number in given.numbers:
            low, high = number.between
            assert low <= number_at(yaml.safe_load(conf_file(number.file).read_text()), number.at) <= high
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


def test_the_trivial_rule_scales_times_by_weights_and_keeps_ratios() -> None:
    draft = FittedCell("edgellm.fig20.gpt2.generation", "pass_seconds", {"model": "gpt2"})
    target = FittedCell("edgellm.fig20.gpt2.verification", "pass_seconds", {"model": "gpt2_large"})
    ratio = model_cost("gpt2_large").model_bytes / model_cost("gpt2").model_bytes
    assert scaled(target, [draft, target]) == pytest.approx(ratio * published(draft.id))
    assert scaled(target, [target]) is None


def test_a_pass_computes_what_is_asked() -> None:
    done = one_pass(FREE, model_cost("gpt2"), rows=3, context=5)
    assert (done.end - done.start, done.rows) == (0.0, 3)
    assert one_pass(FREE, model_cost("gpt2"), rows=4, context=0).rows == 4


def test_the_command_checks_writes_and_names_choices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["jetson_orin_nx", "--check"]) == 0
    assert main(["jetson_orin"]) == 2
    assert "jetson_orin_nx" in capsys.readouterr().err
    copy = tmp_path / "device" / "jetson_orin_nx.yaml"
    copy.parent.mkdir()
    shutil.copy(conf_dir() / "device" / "jetson_orin_nx.yaml", copy)
    copy.write_text(changed_text(copy.read_text(), "processors.gpu.launch", 6.0))
    for module in ("repro.fit", "repro.fitting.device_fit", "repro.fitting.result_tables"):
        monkeypatch.setattr(f"{module}.conf_file", lambda name: tmp_path / f"{name}.yaml")
    assert main(["jetson_orin_nx", "--check"]) == 1
    assert "launch is 6; the fit gives 5.31" in capsys.readouterr().err
    assert main(["jetson_orin_nx", "--write"]) == 0
    assert number_at(yaml.safe_load(copy.read_text()), "processors.gpu.launch") == 5.31
