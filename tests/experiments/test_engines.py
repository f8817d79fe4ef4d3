"""mllm-NPU's baselines as programs of an engine: what they pay, and on which processor."""

from __future__ import annotations

from typing import Any

import pytest

from repro.core.registry import discover, registered
from repro.device.device_file import facts, machine
from repro.device.emulated import EmulatedDevice
from repro.device.engines.engine_file import device_with_engine
from repro.methods.base import Request
from repro.models.forward.network import NoNetwork
from repro.models.runtime.engine import Engine
from repro.models.runtime.session import Session
from repro.models.tokens.prefix import Prefix
from workshop.fitting.measures import model_cost

discover("repro.methods")

PHONE = device_with_engine("xiaomi_14")
ENGINES = ("llama_cpp_cpu", "mnn_cpu", "mlc_gpu", "tflite_gpu", "powerinfer2_npu")


def trace(engine: str, prompt: int = 40, tokens: int = 3) -> list[Any]:
    """The spans of a request to an engine."""
    method = registered("method")[engine]()
    device = EmulatedDevice(machine(PHONE, engine))
    session = Session(
        Engine("target", device, model_cost("gemma_2b_int8"), NoNetwork(), method.places()["target"])
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
        assert set(device_with_engine(phone)["engines"]) == set(ENGINES)
    assert {registered("method")[engine].engine for engine in ENGINES} == set(ENGINES)
    sister = facts(device_with_engine("redmi_k60_pro"))
    assert {f.source for f in sister if f.path.startswith("engines.")} == {"assumed"}
