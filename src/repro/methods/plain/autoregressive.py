"""Plain decoding: one model, one token a pass. Baselines of every paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from repro.core.registry import register
from repro.device.emulated import Device
from repro.methods.base import Decoding, Generation, Method, Request, Sessions
from repro.models.runtime.placement import RESIDENT, Placement
from repro.models.runtime.session import Session


async def decode(request: Request, device: Device, model: Session) -> Generation:
    """Prefill, then one pass a token, with whatever model is given."""
    decoding = Decoding(request, device)
    with device.phase("prefill"):
        (row,) = await model.forward([decoding.text])
        decoding.first(decoding.chooser.first(row))
    with device.phase("decode"):
        while not decoding.done:
            model.keep(decoding.text)
            (row,) = await model.forward([decoding.text])
            decoding.round(decoding.text.then(decoding.chooser.first(row)))
    return decoding.generation


@register("method", "std")
@dataclass(frozen=True)
class Standard(Method):
    """The target, resident in memory.

    Attributes:
        swap: a target that does not fit the memory is streamed in every pass instead of being an error.
    """

    swap: bool = False

    def places(self) -> Mapping[str, Placement]:
        """The target in memory."""
        return {"target": Placement(policy="swap", prefetch=0) if self.swap else RESIDENT}

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """One token a pass."""
        target = sessions["target"]
        return await decode(request, device, target)


@register("method", "sequential")
@dataclass(frozen=True)
class Sequential(Standard):
    """Ghidorah's baseline Sequential (sec. IV-A): on the GPU, which is its device's main processor."""


@register("method", "flash_ar")
@dataclass(frozen=True)
class FlashAutoregressive(Method):
    """The target streamed from flash, layer by layer, in every pass (LEVER sec. 5.1 "Flash-AR")."""

    resident: float = 0.0
    prefetch: int = 1

    def places(self) -> Mapping[str, Placement]:
        """The target in flash, but for a share of its layers."""
        return {"target": Placement(resident=self.resident, prefetch=self.prefetch)}

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """One token a pass."""
        target = sessions["target"]
        return await decode(request, device, target)


@register("method", "std_flash")
@dataclass(frozen=True)
class StandardSwapping(FlashAutoregressive):
    """EdgeLLM's baseline Std (sec. IV-A), a target beyond the memory: read a layer, compute it, drop it."""

    prefetch: int = 0


@register("method", "spl")
@dataclass(frozen=True)
class StandardPipeline(FlashAutoregressive):
    """EdgeLLM's baseline SPL (sec. IV-A): a layer is read while the one before computes."""


@register("method", "draft")
@dataclass(frozen=True)
class DraftAlone(Method):
    """The draft on its own: fast, and not the target's text."""

    lossless: ClassVar[bool] = False

    def places(self) -> Mapping[str, Placement]:
        """The draft in memory, no target."""
        return {"draft": RESIDENT}

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """One token a pass."""
        draft = sessions["draft"]
        return await decode(request, device, draft)
