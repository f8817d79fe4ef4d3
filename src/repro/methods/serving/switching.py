"""What it takes each system to come from one level of a model to another, as ops on a device.

Owns these ops. Must not know when a level changes; who stays on a level pays nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from repro.core.errors import InputError
from repro.device.op import FLASH, Op
from repro.models.costs.model_cost import ModelCost
from repro.models.elastic.uneven_cost import UnevenCost


class Rate(NamedTuple):
    """How costly a switch is: the value of a setting, and the published figures that it was fitted to."""

    value: float
    fitted: tuple[str, ...] = ()


RELAYOUTS = {
    "dram": Rate(1.0),
    "paper": Rate(159.0, ("elastilm.text.2_2.matrix_move",)),
    "served": Rate(17.5, ("elastilm.fig16b.switch.lpruner",)),
}
"""`Relayout.fetched` by name: as fast as DRAM; as slow as the paper's one matrix of 32 MiB on a Redmi K60
Champion, by which all of LLaMA-7B takes 54 s; so that all takes the most that the paper gives for serving."""

POINTERS = {"launch": Rate(1.0), "served": Rate(276.0, ("elastilm.fig16b.switch.elastilm",))}
"""`Pointer.launches` by name: what a device pays for any op; so that a Redmi K60 Champion's longest switch of
LLaMA-7B takes what the paper gives for serving."""


class Switching(Protocol):
    """How a system changes its level."""

    def ops(self, to: ModelCost, on: str) -> tuple[Op, ...]:
        """Ops that come before the prefill, one after the other.

        Args:
            to: the cost of the level that it comes to.
            on: the processor that models run on.
        """


@dataclass(frozen=True)
class Nothing:
    """Layers are left out: the rest stays where it is (LE, ShortGPT)."""

    def ops(self, to: ModelCost, on: str) -> tuple[Op, ...]:
        """See `Switching`."""
        return ()


@dataclass(frozen=True)
class Pointer:
    """ElastiLM (3.2): the end of each matrix moves, and the level's adapters are attached, which reads them.

    Attributes:
        launches: for each of a layer's matrices.
    """

    launches: float = 1.0

    def ops(self, to: ModelCost, on: str) -> tuple[Op, ...]:
        """See `Switching`."""
        matrices = self.launches * to.shape.layers * (7 if to.shape.gated else 6)
        attached = to.adapter_bytes if isinstance(to, UnevenCost) else 0.0
        return (_moved("switch pointers", on, attached, to, launches=matrices),)


@dataclass(frozen=True)
class Relayout:
    """LLM-Pruner on a device (ElastiLM 2.2): what a level keeps lies scattered and is laid out anew.

    Every byte is read and written once, at the rate at which the processor reaches DRAM.
    Deviation: the paper measured 139 ms for a matrix of 32 MiB, far below that rate, and says of its copy no
    more than "in the worst case"; `RELAYOUTS` has what would make it so.

    Attributes:
        fetched: bytes read for each byte that stays: an element taken out of a row fetches a whole line.
    """

    fetched: float = 1.0

    def __post_init__(self) -> None:
        if self.fetched < 1:
            raise InputError(f"switching.fetched is {self.fetched}; a byte that stays is read at least once")

    def ops(self, to: ModelCost, on: str) -> tuple[Op, ...]:
        """See `Switching`."""
        return (_moved("lay weights out", on, (1.0 + self.fetched) * _blocks(to), to),)


@dataclass(frozen=True)
class Swap:
    """PFS (ElastiLM 5.2): another model is read from flash.

    Attributes:
        tables: embeddings too; LaCo's levels have these in common, but none of its merged layers for certain.
    """

    tables: bool = True

    def ops(self, to: ModelCost, on: str) -> tuple[Op, ...]:
        """See `Switching`."""
        size = to.model_bytes if self.tables else _blocks(to)
        return (Op(FLASH, "load", "swap models", bytes=size),)


def _blocks(model_cost: ModelCost) -> float:
    """Bytes of all layers, without adapters."""
    return (
        model_cost.block_bytes
        if isinstance(model_cost, UnevenCost)
        else model_cost.shape.layers * model_cost.layer_bytes
    )


def _moved(name: str, on: str, size: float, model_cost: ModelCost, launches: float = 1.0) -> Op:
    arithmetic = model_cost.stored.arithmetic
    return Op(on, "switch", name, bytes=size, precision=arithmetic, launches=launches)
