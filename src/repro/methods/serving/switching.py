"""Cost of switching between model levels in each system, as ops on a device.

Owns these ops. Must not know when a level changes; no op runs if it stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from repro.core.errors import InputError
from repro.device.op import FLASH, Op
from repro.models.costs.model_cost import ModelCost


class Rate(NamedTuple):
    """Value of a switching setting, and the published values it was fitted to."""

    value: float
    fitted: tuple[str, ...] = ()


RELAYOUTS = {
    "dram": Rate(1.0),
    "paper": Rate(159.0, ("elastilm.text.2_2.matrix_move",)),
    "served": Rate(17.5, ("elastilm.fig16b.switch.lpruner",)),
}
"""`Relayout.fetched` by name. `dram`: DRAM rate. `paper`: fitted to one 32 MiB matrix on a Redmi K60 Champion
(54 s for all of LLaMA-7B). `served`: fitted to the paper's longest switch while serving."""

POINTERS = {
    "launch": Rate(1.0),
    "matrix": Rate(400.0, ("elastilm.text.3_2.switch_elastilm",)),
    "served": Rate(276.0, ("elastilm.fig16b.switch.elastilm",)),
}
"""`Pointer.launches` by name. `launch`: one op launch. `matrix`: 2 ms a matrix (sec. 3.2), 400 launches of
the 5 us that the paper's phones take on their CPUs, and no figure for another processor. `served`: fitted to
the paper's longest switch of LLaMA-7B while serving on a Redmi K60 Champion."""


class Switching(Protocol):
    """Switching of a system between its levels."""

    def ops(self, model_cost: ModelCost, on: str) -> tuple[Op, ...]:
        """Ops of a switch, run one after the other before the prefill.

        Args:
            model_cost: model cost of the new level.
            on: processor that runs the models.
        """


@dataclass(frozen=True)
class Nothing:
    """Switching is free: levels skip layers or parts of them that stay in memory (LE, ShortGPT)."""

    def ops(self, model_cost: ModelCost, on: str) -> tuple[Op, ...]:
        """See `Switching`."""
        return ()


@dataclass(frozen=True)
class Pointer:
    """ElastiLM (3.2): moves the end pointer of each matrix, and attaches (reads) the level's adapters.

    Attributes:
        launches: op launches per matrix.
    """

    launches: float = 1.0

    def ops(self, model_cost: ModelCost, on: str) -> tuple[Op, ...]:
        """See `Switching`."""
        matrices = self.launches * model_cost.shape.layers * (7 if model_cost.shape.gated else 6)
        return (_switch("switch pointers", on, model_cost.adapter_bytes, model_cost, launch_count=matrices),)


@dataclass(frozen=True)
class Relayout:
    """LLM-Pruner on a device (ElastiLM 2.2): copies a level's scattered weights into a contiguous layout.

    Each kept byte is written once and read `fetched` times, at the processor's DRAM rate.
    Deviation: the paper measured 139 ms for a 32 MiB matrix "in the worst case", far slower than DRAM;
    `RELAYOUTS` has values of `fetched` that reproduce it.

    Attributes:
        fetched: bytes read per kept byte; strided elements fetch whole cache lines.
    """

    fetched: float = 1.0

    def __post_init__(self) -> None:
        if self.fetched < 1:
            raise InputError(f"switching.fetched is {self.fetched}; a byte that stays is read at least once")

    def ops(self, model_cost: ModelCost, on: str) -> tuple[Op, ...]:
        """See `Switching`."""
        return (_switch("lay weights out", on, (1.0 + self.fetched) * model_cost.block_bytes, model_cost),)


@dataclass(frozen=True)
class Swap:
    """PFS (ElastiLM 5.2): reads another model from flash.

    Attributes:
        tables: read the embeddings too; LaCo's levels share them, but not their merged layers.
    """

    tables: bool = True

    def ops(self, model_cost: ModelCost, on: str) -> tuple[Op, ...]:
        """See `Switching`."""
        size = model_cost.model_bytes if self.tables else model_cost.block_bytes
        return (Op(FLASH, "load", "swap models", bytes=size),)


def _switch(name: str, on: str, loaded_bytes: float, model_cost: ModelCost, launch_count: float = 1.0) -> Op:
    arithmetic = model_cost.stored.arithmetic
    return Op(on, "switch", name, bytes=loaded_bytes, precision=arithmetic, launches=launch_count)
