"""Autoregressive decoding with one model, one token per pass: baselines of every paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from repro.core.bounds import Layers, Share
from repro.core.registry import register
from repro.device.emulated import Device
from repro.device.op import Op
from repro.methods.base import Decoding, Generation, Method, Request, Sessions
from repro.models.runtime.placement import RESIDENT, Placement
from repro.models.runtime.session import Session


async def decode(
    request: Request, device: Device, model: Session, prefills_on: str = "", ops_before: Sequence[Op] = ()
) -> Generation:
    """Prefill, then decode one token per pass with the given model.

    Args:
        request: the request.
        device: the device.
        model: the model.
        prefills_on: processor of the prefill; "" for that of its placement.
        ops_before: ops that the prefill waits for.
    """
    decoding = Decoding(request, device)
    with device.phase("prefill"):
        for op in ops_before:
            await device.run(op)
        (row,) = await model.forward([decoding.text], on=prefills_on)
        decoding.first(decoding.chooser.first(row))
    with device.phase("decode"):
        while not decoding.done:
            model.keep(decoding.text)
            (row,) = await model.forward([decoding.text])
            decoding.round(decoding.text.then(decoding.chooser.first(row)))
    return decoding.generation


@dataclass(frozen=True)
class Autoregressive(Method):
    """One model alone, one token a pass."""

    def ranks(self, role: str) -> int:
        """See `Method`: first choices alone."""
        return 1

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """One token a pass."""
        (role,) = self.places()
        return await decode(request, device, sessions[role])


@register("method", "std")
@dataclass(frozen=True)
class Standard(Autoregressive):
    """The target, resident in memory.

    Attributes:
        swap: stream a target that does not fit the memory in every pass instead of raising an error.
    """

    plain: ClassVar[bool] = True

    swap: bool = False

    def places(self) -> Mapping[str, Placement]:
        """The target in memory."""
        return {"target": Placement(policy="swap", prefetch=0) if self.swap else RESIDENT}


@register("method", "sequential")
@dataclass(frozen=True)
class Sequential(Standard):
    """Ghidorah's baseline Sequential (sec. IV-A): on the GPU, which is its device's main processor."""


@register("method", "flash_ar")
@dataclass(frozen=True)
class FlashAutoregressive(Autoregressive):
    """The target streamed from flash, layer by layer, in every pass (LEVER sec. 5.1 "Flash-AR")."""

    plain: ClassVar[bool] = True

    resident: Share = 0.0
    prefetch: Layers = 1

    def places(self) -> Mapping[str, Placement]:
        """The target in flash, except the resident share of its layers."""
        return {"target": Placement(resident=self.resident, prefetch=self.prefetch)}


@register("method", "std_flash")
@dataclass(frozen=True)
class StandardSwapping(FlashAutoregressive):
    """EdgeLLM's baseline Std (sec. IV-A): streams the target without overlapping reads and compute."""

    prefetch: Layers = 0


@register("method", "spl")
@dataclass(frozen=True)
class StandardPipeline(FlashAutoregressive):
    """EdgeLLM's baseline SPL (sec. IV-A): reads the next layer while one computes."""


@register("method", "draft")
@dataclass(frozen=True)
class DraftAlone(Autoregressive):
    """The draft model alone, without a target; lossy."""

    lossless: ClassVar[bool] = False

    def places(self) -> Mapping[str, Placement]:
        """The draft in memory, no target."""
        return {"draft": RESIDENT}
