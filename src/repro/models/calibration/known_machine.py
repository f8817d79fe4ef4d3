"""What is known of a machine before its rows: its chip's data sheet and the classes of engines on it.

Owns what such a machine would take for a pass of a measured model. Must not know what is fitted to rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from repro.device.cost import Demand, Machine
from repro.device.device_file import machine
from repro.device.engines.engine_file import PUBLIC, chip_of, on_chip, public_engine, with_engine
from repro.device.op import Op
from repro.models.calibration.llama_bench_file import BenchRow


@dataclass(frozen=True)
class KnownMachine:
    """A device of `conf/device`.

    Attributes:
        name: of its file.
        device: the file.
    """

    name: str
    device: Mapping[str, Any]

    @cached_property
    def engine(self) -> Mapping[str, Any] | None:
        """The classes of engines that its chip names; None if it names none."""
        return public_engine(self.device)

    @cached_property
    def sheet(self) -> Mapping[str, Any]:
        """The device file, with the data sheet of its chip where there are classes."""
        return on_chip(self.device, self.engine) if self.engine else self.device

    def class_name(self, processor: str) -> str:
        """The class of a processor; "" for none."""
        return str((chip_of(self.device).get(PUBLIC) or {}).get(processor, "")) if self.engine else ""

    @cached_property
    def _machine(self) -> Machine:
        return machine(with_engine(self.device, self.engine))

    def start(self, row: BenchRow, rows: int) -> float | None:
        """Seconds of a pass in which its class does not work on weights; None if no class says."""
        demands = self._demands(row, rows)
        return sum(demand.launch for demand in demands) if demands else None

    def seconds(self, row: BenchRow, rows: int) -> float | None:
        """Seconds of a pass of a row's model under its class; None if no class says."""
        demands = self._demands(row, rows)
        return sum(demand.launch + demand.work for demand in demands) if demands else None

    def _demands(self, row: BenchRow, rows: int) -> list[Demand]:
        """The layers, and the output projection of the last row; empty without a class or a shape."""
        if not self.class_name(row.on) or not row.blocks:
            return []
        if row.arithmetic not in self._machine.processors[row.on].peak:
            return []
        head_bytes = row.read * row.head / (row.layers + row.head)
        return [
            self._machine.demand(op)
            for op in (
                Op(
                    on=row.on,
                    kind="layer",
                    name="layers",
                    rows=rows,
                    flops=2.0 * rows * row.layers,
                    bytes=row.read - head_bytes,
                    precision=row.arithmetic,
                    launches=row.blocks,
                ),
                Op(
                    on=row.on,
                    kind="head",
                    name="head",
                    flops=2.0 * row.head,
                    bytes=head_bytes,
                    precision=row.arithmetic,
                    decoder=row.on,
                ),
            )
        ]
