"""Speedy Transformer Inference (Guo et al., ASPLOS 2023; EdgeLLM sec. IV-A "STI"): quantized target shards.

See `docs/edgellm.md` for the differences from the publication.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Interval

from repro.core.bounds import Layers, Share
from repro.core.registry import register
from repro.device.emulated import Device
from repro.methods.base import Generation, Method, Request, Sessions
from repro.methods.plain.autoregressive import decode
from repro.methods.sti.shard_plan import Sharding
from repro.methods.sti.sharded_model import shard_model
from repro.models.runtime.model import Model, ModelVariant
from repro.models.runtime.placement import Placement


@register("method", "sti")
@dataclass(frozen=True)
class SpeedyTransformerInference(Method):
    """Streams the target in shards whose bit widths are chosen to meet a latency target per token.

    Attributes:
        widths: bits to which a shard may be quantized, besides full precision (STI: 2 to 6).
        latency: latency target per token, as a share of the latency with unquantized streaming. STI's user
            gives seconds; EdgeLLM prints no setting, and 0.53 follows from its speedups over Std and STI.
        preload: size of the buffer for the first layers' shards, as a share of all layers' bytes.
        prefetch: layers that are read ahead.
    """

    clock: ClassVar[str] = "emulated"
    lossless: ClassVar[bool] = False

    widths: tuple[Annotated[int, Interval(ge=1, le=8)], ...] = (2, 3, 4, 5, 6)
    latency: Annotated[float, Interval(gt=0, le=1e3)] = 0.53
    preload: Share = 0.01
    prefetch: Layers = 1

    def __post_init__(self) -> None:
        _ = self._sharding  # InputError for what makes no plan

    def ranks(self, role: str) -> int:
        """See `Method`: first choices alone."""
        return 1

    def places(self) -> Mapping[str, Placement]:
        """The target in flash, in shards."""
        return {"target": Placement(resident=0.0, prefetch=self.prefetch, buffer=self.preload)}

    def variant(self, role: str, model: Model, device: Device) -> ModelVariant:
        """See `Method`: the target in shards, as planned for the device."""
        return shard_model(model, self._sharding, device, self.places()[role])

    @property
    def _sharding(self) -> Sharding:
        return Sharding(self.widths, self.latency, self.preload)

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """One token a pass."""
        target = sessions["target"]
        return await decode(request, device, target)
