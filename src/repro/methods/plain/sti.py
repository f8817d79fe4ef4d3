"""Speedy Transformer Inference (Guo et al., ASPLOS 2023; EdgeLLM sec. IV-A "STI"): the target in shards.

See `docs/edgellm.md` for what its publication does and what is done here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from repro.core.registry import register
from repro.device.emulated import Device
from repro.methods.base import Generation, Method, Request, Sessions
from repro.methods.plain.autoregressive import decode
from repro.models.costs.shard_plan import Sharding
from repro.models.runtime.placement import Placement


@register("method", "sti")
@dataclass(frozen=True)
class SpeedyTransformerInference(Method):
    """The target alone, streamed in shards, each as wide as the time for a token allows.

    Attributes:
        widths: bits that a shard may be rounded to, beside staying whole (STI: 2 to 6).
        latency: what a token may take, as a share of what it takes with every layer streamed whole. STI's
            user gives seconds; EdgeLLM prints no setting, and 0.53 is what its speedups over Std and STI say.
        preload: size of the buffer that holds the first layers' shards, as a share of all layers' bytes.
        prefetch: layers that are read ahead.
    """

    lossless: ClassVar[bool] = False

    widths: tuple[int, ...] = (2, 3, 4, 5, 6)
    latency: float = 0.53
    preload: float = 0.01
    prefetch: int = 1

    def places(self) -> Mapping[str, Placement]:
        """The target in flash, in shards."""
        shards = Sharding(self.widths, self.latency, self.preload)
        return {"target": Placement(resident=0.0, prefetch=self.prefetch, shards=shards)}

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """One token a pass."""
        target = sessions["target"]
        return await decode(request, device, target)
