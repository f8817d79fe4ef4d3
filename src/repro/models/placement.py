"""Where a model's parts lie on a device. Facts of one opened model; knows nothing of devices."""

from __future__ import annotations

from dataclasses import dataclass

from repro.core.errors import InputError
from repro.core.op import PROCESSORS
from repro.core.registry import unknown


@dataclass(frozen=True)
class Placement:
    """Which processor runs a model and how much of it stays in memory.

    Attributes:
        on: the processor of the layers; "" is the device's main one.
        head: the processor of the output projection; "" is that of the layers.
        resident: share of the layers held in DRAM; the rest is streamed from flash in every pass.
        prefetch: layers that are read ahead of the one that computes; 0 reads and computes in turn.
        preload: reading goes on between passes with the first layers of the next.
        run: resident layers that go to the processor as one op; 0 is all of them. Small runs let others in.
    """

    on: str = ""
    head: str = ""
    resident: float = 1.0
    prefetch: int = 1
    preload: bool = False
    run: int = 0

    def __post_init__(self) -> None:
        for processor in (self.on, self.head):
            if processor and processor not in PROCESSORS:
                raise InputError(unknown("processor", processor, PROCESSORS))
        if not 0 <= self.resident <= 1:
            raise InputError(f"placement.resident is {self.resident}; it is a share from 0 to 1")
        if self.prefetch < 0:
            raise InputError(f"placement.prefetch is {self.prefetch}; it must be 0 or more layers")

    def held(self, layers: int) -> int:
        """How many of so many layers stay in memory: the first ones."""
        return int(self.resident * layers + 1e-9)


RESIDENT = Placement()
STREAMED = Placement(resident=0.0)
