"""The device files say what the fit gives, and the fit gives the published cells that it was made for."""

import pytest

from repro.core.errors import InputError
from repro.core.paths import conf_dir
from repro.device.device_file import facts, machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import device_with_engine
from repro.device.op import NPU
from repro.methods.speculative.edgellm import EdgeLLM
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.placement import Placement
from studies import fit_devices

FITS = {fit.device: fit for fit in fit_devices.FITS}

pytestmark = pytest.mark.skipif(
    not (conf_dir() / "reference" / "cells.csv").exists(), reason="conf/reference/cells.csv is not here"
)


def test_every_device_file_says_what_its_fit_gives(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit_devices.main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", FITS)
def test_the_fit_meets_its_cells(name: str) -> None:
    on = machine(fit_devices.device_file(name))
    for knob in FITS[name].knobs:
        for cell, measure in knob.cells.items():
            assert measure(on) == pytest.approx(fit_devices.published(cell), rel=0.03), cell


def test_nothing_is_fitted_that_no_knob_turns() -> None:
    for name, fit in FITS.items():
        known = facts(fit_devices.device_file(name))
        fitted = {f.path for f in known if f.source == "fitted" and not f.path.startswith("engines.")}
        assert fitted == {knob.path for knob in fit.knobs}
    assert not [f for f in facts(fit_devices.device_file("xiaomi_11")) if f.source == "fitted"]


def test_no_other_cells_are_fitted_to() -> None:
    cells = {cell for fit in FITS.values() for knob in fit.knobs for cell in knob.cells}
    assert cells == {
        "edgellm.fig3.io_share",
        "edgellm.fig5.nav_reduction",
        "edgellm.fig20.mt5.generation",
        "edgellm.fig20.mt5.verification",
        "edgellm.fig20.gpt2.generation",
        "edgellm.fig20.gpt2.verification",
        "edgellm.fig20.llama2.generation",
        "edgellm.fig20.llama2.verification",
        "mllm_npu.text.3_4.npu_time",
    }


def test_the_tx2_meets_figure_5_without_an_exponent() -> None:
    ours = fit_devices.nav_reduction("mt5_large")(machine(fit_devices.device_file("jetson_tx2")))
    assert ours == pytest.approx(9.9, rel=0.02)  # the upper end of the range over both models


def test_a_wrong_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = FITS["jetson_orin_nx"]
    solved = fit_devices.solve(fit)
    assert list(fit_devices.wrong(fit, solved)) == []
    moved = fit_devices.device_file("jetson_orin_nx")
    fit_devices.put(moved, "processors.gpu.launch", 5.5)
    moved["processors"]["gpu"]["launch"]["cells"] = ["edgellm.fig20.mt5.generation"]
    monkeypatch.setattr(fit_devices, "device_file", lambda name: moved)
    value, cells = fit_devices.wrong(fit, solved)
    assert value == "jetson_orin_nx: processors.gpu.launch is 5.5; the fit gives 5.31"
    assert "it is fitted to edgellm.fig3.io_share" in cells


def test_a_device_that_carries_another_fit_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(fit_devices.drifted()) == []
    files = {name: fit_devices.device_file(name) for name in ("xiaomi_10", "xiaomi_11")}
    fit_devices.put(files["xiaomi_10"], "flash.bandwidth", 0.882)
    monkeypatch.setattr(fit_devices, "device_file", files.__getitem__)
    assert list(fit_devices.drifted()) == ["xiaomi_11: flash.bandwidth is 0.519; xiaomi_10's fit gives 1.04"]


def test_cells_that_no_value_meets_are_an_error() -> None:
    knob = fit_devices.Knob("flash.bandwidth", (1.0, 2.0), FITS["jetson_tx2"].knobs[1].cells)
    with pytest.raises(InputError, match=r"no flash.bandwidth between 1.0 and 2.0 meets edgellm.fig20.mt5"):
        fit_devices.turn(fit_devices.device_file("jetson_tx2"), knob)


def test_an_unknown_device_is_named_with_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert fit_devices.main(["jetson"]) == 2
    assert "jetson_tx2" in capsys.readouterr().err


PAIRS = [  # EdgeLLM Table III
    ("jetson_tx2", "mt5_large", "mt5_small"),
    ("jetson_tx2", "bart_large", "bart_base"),
    ("jetson_orin_nx", "t5_large", "t5_small"),
    ("jetson_orin_nx", "gpt2_large", "gpt2"),
    ("xiaomi_10", "vicuna_13b", "vicuna_7b"),
    ("xiaomi_11", "llama_2_13b_chat", "llama_2_7b_chat"),
]


@pytest.mark.parametrize(("name", "target", "draft"), PAIRS)
def test_a_pair_fits_its_device_beside_500_tokens(name: str, target: str, draft: str) -> None:
    device = EmulatedDevice(machine(fit_devices.device_file(name)))
    for role, model in (("draft", draft), ("target", target)):
        model_cost, place = fit_devices.model_cost(model), EdgeLLM().places()[role]
        Engine(role, device, model_cost, NoNetwork(), place, tokens=500).reserve()
    assert 0 < device.memory.peak <= device.memory.budget


@pytest.mark.parametrize(("rows", "on", "computing"), [(1, "", 0.0966), (17, NPU, 0.817), (33, NPU, 1.229)])
def test_lever_s_serial_engine_adds_reads_to_what_is_computed(rows: int, on: str, computing: float) -> None:
    """Passes of Qwen3-8B: Table 1's one token, and Table 2's verifications with Table 1's reads."""
    machines = [
        machine(device_with_engine("oneplus_12", f"lever_{form}")) for form in ("serial", "overlapped")
    ]
    streamed = Placement(on=on, resident=0.0, prefetch=1)
    serial, overlapped = (
        fit_devices.one_pass(each, "qwen3_8b_q4_0", streamed, rows=rows) for each in machines
    )
    assert serial.end - serial.start == pytest.approx(0.9534 + computing, rel=0.01)
    assert serial.loading == pytest.approx(0.9534, rel=0.01)
    longer = max(0.9534, computing)
    assert 0.99 * longer < overlapped.end - overlapped.start < 1.1 * longer, "the head follows the last read"
