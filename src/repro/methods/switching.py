"""What it takes each system to come from one level of a model to another, as ops on a device.

Owns these ops. Must not know when a level changes; who stays on a level pays nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from repro.core.errors import InputError
from repro.core.op import FLASH, Op
from repro.models.shape import Bill
from repro.models.uneven_bill import UnevenBill

MEASURED = "elastilm.text.2_2.matrix_move"
"""The published time that it takes to lay one matrix out anew."""

FETCHED = {"dram": 1.0, "paper": 159.0}
"""Of `Relayout`, by name. `paper` is fitted to `MEASURED`, a matrix of 32 MiB on a Redmi K60 Champion."""


class Switching(Protocol):
    """How a system changes its level."""

    def ops(self, to: Bill, on: str) -> tuple[Op, ...]:
        """Ops that come before the prefill, one after the other.

        Args:
            to: the bill of the level that it comes to.
            on: the processor that models run on.
        """


@dataclass(frozen=True)
class Nothing:
    """Layers are left out: the rest stays where it is (LE, ShortGPT)."""

    def ops(self, to: Bill, on: str) -> tuple[Op, ...]:
        """See `Switching`."""
        return ()


@dataclass(frozen=True)
class Pointer:
    """ElastiLM (3.2): the end of each matrix moves, and the level's adapters are attached, which reads them.

    A launch for each of a layer's matrices.
    """

    def ops(self, to: Bill, on: str) -> tuple[Op, ...]:
        """See `Switching`."""
        matrices = to.shape.layers * (7 if to.shape.gated else 6)
        attached = to.adapter_bytes if isinstance(to, UnevenBill) else 0.0
        return (_moved("switch pointers", on, attached, to, launches=matrices),)


@dataclass(frozen=True)
class Relayout:
    """LLM-Pruner on a device (ElastiLM 2.2): what a level keeps lies scattered and is laid out anew.

    Every byte is read and written once, at the rate at which the processor reaches DRAM.
    Deviation: the paper measured 139 ms for a matrix of 32 MiB, far below that rate, and says of its copy no
    more than "in the worst case"; `FETCHED` has what would make it so.

    Attributes:
        fetched: bytes read for each byte that stays: an element taken out of a row fetches a whole line.
    """

    fetched: float = 1.0

    def __post_init__(self) -> None:
        if self.fetched < 1:
            raise InputError(f"switching.fetched is {self.fetched}; a byte that stays is read at least once")

    def ops(self, to: Bill, on: str) -> tuple[Op, ...]:
        """See `Switching`."""
        return (_moved("lay weights out", on, (1.0 + self.fetched) * _blocks(to), to),)


@dataclass(frozen=True)
class Swap:
    """PFS (ElastiLM 5.2): another model is read from flash.

    Attributes:
        tables: embeddings too; LaCo's levels have these in common, but none of its merged layers for certain.
    """

    tables: bool = True

    def ops(self, to: Bill, on: str) -> tuple[Op, ...]:
        """See `Switching`."""
        size = to.model_bytes if self.tables else _blocks(to)
        return (Op(FLASH, "load", "swap models", bytes=size),)


def _blocks(bill: Bill) -> float:
    """Bytes of all layers, without adapters."""
    return bill.block_bytes if isinstance(bill, UnevenBill) else bill.shape.layers * bill.layer_bytes


def _moved(name: str, on: str, size: float, bill: Bill, launches: int = 1) -> Op:
    arithmetic = bill.stored.arithmetic
    return Op(on, "switch", name, bytes=size, precision=arithmetic, launches=launches)
