"""Ghidorah's baseline Medusa+EM (sec. IV-A): Medusa on two processors, divided as in Megatron-LM, without
copies, at the ratio of EdgeNN (Zhang et al., ICDE 2023).

Must not know the kind of device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from repro.core.errors import InputError
from repro.core.registry import register
from repro.device.emulated import Device
from repro.device.op import CPU, GPU
from repro.methods.base import Generation, Request, Serving, Sessions
from repro.methods.ghidorah.contention import by_speed
from repro.methods.ghidorah.division import divide
from repro.methods.ghidorah.partition import Split
from repro.methods.ghidorah.pass_profiling import Rehearsal
from repro.methods.speculative.drafting.verification_tree import search_tree
from repro.methods.speculative.medusa import Medusa, TreeDecoding, calibration
from repro.records.record import Scalar


@register("method", "medusa_em")
@dataclass(frozen=True)
class MedusaEM(Medusa):
    """Tensor parallelism over two processors with shared memory: attention divided by heads, dense with mask.

    The ratio is that of the processors' speeds, each measured alone with the whole work, which ignores
    memory contention.
    """

    @property
    def processors(self) -> frozenset[str]:
        """See `Method`."""
        return frozenset({CPU, GPU})

    async def prepare(self, device: Device, sessions: Sessions) -> Serving:
        """Measure each processor alone, and set the ratio."""
        target, draft = sessions["target"], sessions["draft"]
        tree = search_tree(calibration(draft), self.width)
        rehearsal, other = Rehearsal(device, target, draft, tree), partner(device)
        with device.phase("profile"):
            main_seconds = await rehearsal.verification()
            other_seconds = await rehearsal.verification(on=other)
        split = Split(by_speed(main_seconds, other_seconds), "megatron", to=other)
        return DividedDecoding(tree, split)


@dataclass(frozen=True)
class DividedDecoding(TreeDecoding):
    """Medusa decoding with a fixed tree, target and heads divided at one ratio."""

    split: Split

    @property
    def figures(self) -> Mapping[str, Scalar]:
        """The tree as text, and the other processor's share."""
        return {**super().figures, "other_share": self.split.share}

    async def serve(self, request: Request, device: Device, sessions: Sessions) -> Generation:
        """As `TreeDecoding`, with the split applied."""
        target, draft = sessions["target"], sessions["draft"]
        for session in (target, draft):
            divide(session, self.split)
        return await super().serve(request, device, sessions)


def partner(device: Device) -> str:
    """The second processor: the CPU, or the GPU if the main processor is the CPU.

    Raises:
        InputError: the device does not have it.
    """
    other = GPU if device.main == CPU else CPU
    if other not in device.resources:
        raise InputError(
            f"{device.name} has no {other} beside its {device.main} to divide the work with; choose a device "
            "with both (jetson_xavier_nx), or method=medusa, or ghidorah with method.divided=false"
        )
    return other
