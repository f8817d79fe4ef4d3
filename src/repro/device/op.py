"""Operations that methods submit to devices. Must not know what they cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

CPU, GPU, NPU, FLASH = "cpu", "gpu", "npu", "flash"
PROCESSORS = (CPU, GPU, NPU)
UNSUPPORTED = "unsupported"
"""What an engine's file says of a format without a kernel: the processor that computes it instead."""


class Op(NamedTuple):
    """One operation on one resource: its FLOPs and bytes, and the function that computes it.

    Attributes:
        on: the resource, `cpu`, `gpu`, `npu` or `flash`.
        kind: kind of op, which costs may depend on (`layer`, `head`, `embed`, `attention`, `load`, ...).
        name: its name in timelines.
        rows: number of tokens processed together.
        flops: floating or integer operations; a multiply-add counts as two.
        bytes: bytes moved between the resource and DRAM; for `flash` the bytes read.
        precision: arithmetic precision (`fp32`, `fp16`, `int8`), not the storage precision of weights.
        format: storage format of the weights (`q4_0`), for engines with kernels of their own for some; "" if
            it does not matter.
        request: bytes per read request, for `flash`; 0 for a single request.
        graph: name of the static graph that a processor with static shapes must build first; "" for none.
        priority: waiting ops run lowest number first, then in first-come order.
        launches: number of launches, in units of one per layer; parts of a layer have less than 1.
        attention: how many of `flops` are attention's, which an engine may do at a rate of its own.
        synced: True if it reads data that another processor wrote.
        decoder: the processor that ran the layers before an output projection, whose framework's time for a
            token goes before it; "" before other ops.
        compute: the function that computes the result; None for a cost-only op.
    """

    on: str
    kind: str
    name: str
    rows: int = 1
    flops: float = 0.0
    bytes: float = 0.0
    precision: str = "fp32"
    format: str = ""
    request: float = 0.0
    graph: str = ""
    priority: int = 0
    launches: float = 1.0
    attention: float = 0.0
    synced: bool = False
    decoder: str = ""
    compute: Callable[[], Any] | None = None

    @property
    def asks(self) -> tuple[object, ...]:
        """All that a machine's demand depends on: equal for two ops that cost the same."""
        return (
            self.on,
            self.kind,
            self.rows,
            self.flops,
            self.bytes,
            self.precision,
            self.format,
            self.request,
            self.launches,
            self.attention,
            self.synced,
            self.decoder,
        )
