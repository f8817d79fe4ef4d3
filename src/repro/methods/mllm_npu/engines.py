"""mllm-NPU's baselines: five engines with autoregressive decoding, each with its own rates (sec. 4.1).

Owns which processors an engine uses; its rates are in the engine file under `programs:`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from repro.core.registry import register
from repro.device.emulated import Device
from repro.device.op import Op
from repro.methods.base import Generation, Method, Request, Serving, Sessions
from repro.methods.plain.autoregressive import decode
from repro.models.runtime.placement import Placement
from repro.models.runtime.session import Session
from repro.records.record import Scalar


@dataclass(frozen=True)
class PlainEngine(Method):
    """Target in memory: the engine prepares for the prompt's length, prefills and decodes.

    Preparation is modeled as building a static graph; the device file gives its time (`graph_seconds`).

    Attributes:
        processor: processor of decoding.
        prefills_on: processor of the prefill; "" is `processor`.
    """

    processor: ClassVar[str] = "cpu"
    prefills_on: ClassVar[str] = ""

    @property
    def processors(self) -> frozenset[str]:
        """See `Method`."""
        return frozenset({self.processor, self.prefills_on or self.processor})

    def places(self) -> Mapping[str, Placement]:
        """The target in memory."""
        return {"target": Placement(on=self.processor)}

    async def prepare(self, device: Device, sessions: Sessions) -> Serving:
        """The engine, with its bytes in memory."""
        return Opened(self, device.memory.in_use)

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """Prefill in one pass, then decode one token per pass."""
        target = sessions["target"]
        return await decode(request, device, target, self.prefills_on, [self._ready(request, target)])

    def _ready(self, request: Request, target: Session) -> Op:
        """An op without work that requires the graph of the prompt's length."""
        processor, row_count = self.prefills_on or self.processor, len(request.prompt)
        arithmetic = target.engine.model_cost.stored.arithmetic
        return Op(
            processor,
            "ready",
            f"ready for {row_count} tokens",
            row_count,
            precision=arithmetic,
            graph="prompt",
        )


@dataclass(frozen=True)
class Opened(Serving):
    """An engine with its model in memory; `memory_bytes` is its bytes, KV cache included."""

    engine: PlainEngine
    memory_bytes: float

    @property
    def figures(self) -> Mapping[str, Scalar]:
        """Bytes in memory."""
        return {"memory_bytes": self.memory_bytes}

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """See `PlainEngine`."""
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
    """PowerInfer-V2: prefill on the NPU, decode on the CPU.

    Deviation: sparse decoding and streaming from flash are not modeled as ops but as an effective bandwidth.
    """

    arithmetic: ClassVar[str] = "8-bit activations in the prefill, and a part of the neurons afterwards"
    engine: ClassVar[str] = "powerinfer2_npu"
    format: ClassVar[str] = "w8a8"
    prefills_on: ClassVar[str] = "npu"
