"""What is known of a machine before its rows: its chip's data sheet and the classes of engines on it.

Owns what such a machine would take for a pass of a measured model. Must not know what is fitted to rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from repro.device.cost import FULL_ROWS, Demand, Machine
from repro.device.device_file import machine
from repro.device.engines.engine_file import PUBLIC, chip_of, on_chip, public_engine, with_engine
from repro.device.op import Op
from repro.models.calibration.llama_bench_file import BenchRow
from repro.models.calibration.sections import Section


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

    def seconds(self, row: BenchRow, rows: int) -> float | None:
        """Seconds of a pass of a row's model under its class; None if no class says."""
        demands = self._demands(row, rows)
        return sum(demand.launch + demand.work for demand in demands) if demands else None

    def scaled_class(self, processor: str, one: float, many: float, note: str) -> Section:
        """The numbers of a processor's class for a machine that takes longer.

        Args:
            processor: one with a class.
            one: how many times as long a pass over one row takes.
            many: the same of a pass over `FULL_ROWS` or more.
            note: why, which the changed numbers say.
        """
        table: Section = dict((self.engine or {})["processors"][processor])
        share, token = table["bandwidth_share"], table["token"]
        table["bandwidth_share"] = {**share, "value": min(1.0, _digits(share["value"] / one)), "note": note}
        table["token"] = {**token, "value": _digits(token["value"] * one), "note": note}
        table["efficiency"] = _scaled(table["efficiency"], 1 / one, 1 / many, note)
        table["start"] = {name: _scaled(start, one, many, note) for name, start in table["start"].items()}
        return table

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
                    format=row.format,
                    launches=row.blocks,
                ),
                Op(
                    on=row.on,
                    kind="head",
                    name="head",
                    flops=2.0 * row.head,
                    bytes=head_bytes,
                    precision=row.arithmetic,
                    format=row.format,
                    decoder=row.on,
                ),
            )
        ]


def _scaled(number: Section, one: float, many: float, note: str) -> Section:
    """A number or a curve over rows, times a factor at one row and another at many."""
    points = number.get("points") or [[1, number["value"]], [round(FULL_ROWS), number["value"]]]
    factors = {rows: one if rows == 1 else many for rows, _ in points}
    return {
        **{key: entry for key, entry in number.items() if key != "value"},
        "points": [[rows, _digits(value * factors[rows])] for rows, value in points],
        "note": note,
    }


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
