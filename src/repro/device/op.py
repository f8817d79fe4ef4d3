"""What a method asks a device to do. Knows nothing of what doing it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CPU, GPU, NPU, FLASH = "cpu", "gpu", "npu", "flash"
PROCESSORS = (CPU, GPU, NPU)


@dataclass(frozen=True, slots=True)
class Op:
    """One piece of work on one resource: what it moves and computes, and the function that does it for real.

    Attributes:
        on: the resource, `cpu`, `gpu`, `npu` or `flash`.
        kind: what a device's cost rules tell apart (`layer`, `head`, `embed`, `attention`, `load`, ...).
        name: what a timeline shows.
        rows: tokens that go through at once.
        flops: floating or integer operations, a multiply-add counting two.
        bytes: bytes moved between the resource and DRAM; for `flash` the bytes read.
        precision: arithmetic (`fp32`, `fp16`, `int8`), not how weights are stored.
        request: bytes of one read request, for `flash`; 0 is one request for all.
        graph: name of the static graph that a processor with static shapes must build before; "" needs none.
        priority: among the ops that wait for a resource the lowest goes first, then the first come.
        launches: how many launches it stands for, as one op a layer would have; parts of a layer have less.
        synced: it reads what another processor wrote.
        compute: does the work and returns its value; absent when only the cost is wanted.
    """

    on: str
    kind: str
    name: str
    rows: int = 1
    flops: float = 0.0
    bytes: float = 0.0
    precision: str = "fp32"
    request: float = 0.0
    graph: str = ""
    priority: int = 0
    launches: float = 1.0
    synced: bool = False
    compute: Callable[[], Any] | None = None
