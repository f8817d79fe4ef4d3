"""mllm-NPU's engines: what they pay and where, and that their numbers are the fit's, of named rows."""

from __future__ import annotations

import re
from typing import Any

import pytest

from repro.core.registry import registered
from repro.device.device_file import facts, machine
from repro.device.emulated import EmulatedDevice
from repro.methods.base import Request
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from studies import fit_devices, fit_engines

fit: Any = fit_engines
devices: Any = fit_devices

PHONE = fit.device_file("xiaomi_14")
ENGINES = tuple(fit.COLUMNS)


def trace(engine: str, prompt: int = 40, tokens: int = 3) -> list[Any]:
    """The spans of a request to an engine."""
    method = registered("method")[engine]()
    device = EmulatedDevice(machine(PHONE, engine))
    session = Session(
        Engine("target", device, fit.model_cost("gemma_2b_int8"), NoNetwork(), method.places()["target"])
    )
    request = Request("one", (0,) * prompt, tokens)
    session.start(Prefix.of(request.prompt))
    done = device.play(method.serve(request, device, {"target": session}))
    assert len(done.tokens) == tokens
    return [s for s in device.trace.spans if s.kind in ("build", "layer")]


@pytest.mark.parametrize(
    ("engine", "prefills", "decodes"),
    [
        ("llama_cpp_cpu", "cpu", "cpu"),
        ("mnn_cpu", "cpu", "cpu"),
        ("mlc_gpu", "gpu", "gpu"),
        ("tflite_gpu", "gpu", "gpu"),
        ("powerinfer2_npu", "npu", "cpu"),
    ],
)
def test_an_engine_computes_on_its_processor(engine: str, prefills: str, decodes: str) -> None:
    layers = [s for s in trace(engine) if s.kind == "layer"]
    assert [s.on for s in layers] == [prefills, decodes, decodes]
    assert [s.rows for s in layers] == [40, 1, 1]


def test_getting_ready_takes_its_time_once_a_length() -> None:
    ready = [s for s in trace("mlc_gpu") if s.kind == "build"]
    known = {fact.path: fact.value for fact in facts(PHONE)}
    assert [s.seconds for s in ready] == [pytest.approx(known["engines.mlc_gpu.gpu.graph_seconds"])]
    assert not [s for s in trace("llama_cpp_cpu") if s.kind == "build"]
    assert not [s for s in trace("powerinfer2_npu") if s.kind == "build"], "the NPU's 11.9 s are not its"


def test_every_engine_is_known_to_both_phones() -> None:
    for phone in ("xiaomi_14", "redmi_k60_pro"):
        assert set(fit.device_file(phone)["engines"]) == set(ENGINES)
    assert {registered("method")[engine].engine for engine in ENGINES} == set(ENGINES)


def test_the_device_file_meets_the_cells_that_it_is_fitted_to() -> None:
    """A knob's cells are met in the mean of logarithms, which is what solving it means."""
    for knob in fit.FIT.knobs:
        value = devices.get(PHONE, knob.path)
        assert devices.residual(fit.device_file("xiaomi_14"), knob, value) == pytest.approx(0, abs=0.01), (
            knob.path
        )


def test_a_knob_that_is_turned_away_no_longer_meets_them() -> None:
    (knob,) = (k for k in fit.FIT.knobs if k.engine == "powerinfer2_npu")
    wrong = 1.1 * devices.get(PHONE, knob.path)
    assert abs(devices.residual(fit.device_file("xiaomi_14"), knob, wrong)) > 0.03


def test_what_is_fitted_names_its_cells() -> None:
    fitted = {f.path: set(f.cells) for f in facts(PHONE) if f.source == "fitted" and "engines." in f.path}
    assert fitted == {knob.path: knob.determined for knob in fit.FIT.knobs}
    sister = facts(fit.device_file("redmi_k60_pro"))
    assert {f.source for f in sister if f.path.startswith("engines.")} == {"assumed"}


def test_only_rows_of_two_models_are_fitted_to() -> None:
    """Of TFLite, which has neither, Gemma-2B's; never a cell of mllm-NPU's own."""
    cells = {cell for knob in fit.FIT.knobs for cell in knob.cells}
    assert len(cells) == 32
    for cell in cells:
        tflite = r"gemma_2b\.tflite"
        assert re.fullmatch(
            rf".*\.(qwen1_5_1_8b\.(mlc|lcpp|mnn)|llama_2_7b\.(mlc|lcpp|mnn|pi)|{tflite})", cell
        )


@pytest.mark.parametrize("dataset", fit.DATASETS)
def test_an_answer_is_as_long_as_suits_the_quick_engines(dataset: str) -> None:
    lengths = fit.allowed(PHONE, dataset)
    assert fit.LENGTHS[dataset] in lengths
    near = [n for n in (fit.LENGTHS[dataset] - 1, fit.LENGTHS[dataset] + 1) if n in lengths]
    best = fit.miss(PHONE, dataset, fit.LENGTHS[dataset])
    assert all(fit.miss(PHONE, dataset, n) > 0.99 * best for n in near)  # the file's numbers are rounded
