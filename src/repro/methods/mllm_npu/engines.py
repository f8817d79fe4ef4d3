"""mllm-NPU's baselines: five engines that decode plainly, each at rates of its own (sec. 4.1).

Knows which processor an engine uses; what it reaches there stands under `engines:` of a device file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from repro.core.registry import register
from repro.device.emulated import Device
from repro.device.op import Op
from repro.methods.base import Decoding, Generation, Method, Request, Serving, Sessions
from repro.models.runtime.placement import Placement
from repro.models.runtime.session import Session
from repro.records.record import Scalar


@dataclass(frozen=True)
class PlainEngine(Method):
    """A target in memory: an engine gets ready for a prompt's length, reads the prompt, decodes.

    Getting ready is a static graph to the device, whose file says how long an engine takes (`graph_seconds`).

    Attributes:
        processor: where it decodes.
        prefills_on: where it reads the prompt; "" is where it decodes.
    """

    processor: ClassVar[str] = "cpu"
    prefills_on: ClassVar[str] = ""

    def places(self) -> Mapping[str, Placement]:
        """The target in memory."""
        return {"target": Placement(on=self.processor)}

    async def prepare(self, device: Device, sessions: Sessions) -> Serving:
        """The engine itself, and what it holds in memory."""
        return Opened(self, device.memory.held)

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """One pass over the prompt, then one token a pass."""
        target = sessions["target"]
        decoding = Decoding(request, device)
        with device.phase("prefill"):
            await device.run(self._ready(request, target))
            (row,) = await target.forward([decoding.text], on=self.prefills_on)
            decoding.first(decoding.chooser.first(row))
        with device.phase("decode"):
            while not decoding.done:
                target.keep(decoding.text)
                (row,) = await target.forward([decoding.text])
                decoding.round(decoding.text.then(decoding.chooser.first(row)))
        return decoding.generation

    def _ready(self, request: Request, target: Session) -> Op:
        """What needs the graph of a prompt's length and does nothing itself."""
        on, rows = self.prefills_on or self.processor, len(request.prompt)
        arithmetic = target.engine.model_cost.stored.arithmetic
        return Op(on, "ready", f"ready for {rows} tokens", rows, precision=arithmetic, graph="prompt")


@dataclass(frozen=True)
class Opened(Serving):
    """An engine with a model in memory, so many bytes with keys and values."""

    engine: PlainEngine
    held: float

    @property
    def figures(self) -> Mapping[str, Scalar]:
        """What is held in memory."""
        return {"memory_bytes": self.held}

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """As the engine."""
        return await self.engine.serve(request, device, sessions)


@register("method", "llama_cpp_cpu")
@dataclass(frozen=True)
class LlamaCpp(PlainEngine):
    """llama.cpp on the CPU."""

    engine: ClassVar[str] = "llama_cpp_cpu"


@register("method", "mnn_cpu")
@dataclass(frozen=True)
class MNN(PlainEngine):
    """MNN on the CPU."""

    engine: ClassVar[str] = "mnn_cpu"


@register("method", "mlc_gpu")
@dataclass(frozen=True)
class MLC(PlainEngine):
    """MLC-LLM on the GPU."""

    engine: ClassVar[str] = "mlc_gpu"
    processor: ClassVar[str] = "gpu"


@register("method", "tflite_gpu")
@dataclass(frozen=True)
class TFLite(PlainEngine):
    """TFLite on the GPU."""

    engine: ClassVar[str] = "tflite_gpu"
    processor: ClassVar[str] = "gpu"


@register("method", "powerinfer2_npu")
@dataclass(frozen=True)
class PowerInfer2(PlainEngine):
    """PowerInfer-V2: the prompt on the NPU, the answer on the CPU.

    Deviation: its sparse decoding and its streaming from flash are no ops here; their speed is a bandwidth.
    """

    engine: ClassVar[str] = "powerinfer2_npu"
    prefills_on: ClassVar[str] = "npu"
