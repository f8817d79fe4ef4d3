"""The numbers of a class of engines, and the seconds of a pass that they give on a chip.

Owns the closed form of a pass in memory: the emulator's own cost (`device.cost`) of three ops that follow one
another. A test shows that both agree. Must not know what is measured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil

import numpy as np

from workshop.fitting.problem import Parameter, Vector
from workshop.validation.phones.chips import bandwidth, peaks
from workshop.validation.phones.class_specification import ClassNumber, class_specification
from workshop.validation.phones.quantities import Quantity, work
from workshop.validation.phones.rows import PhoneRow

RATE_OF = "rate.{}"
"""A factor on both rates in another arithmetic than int8."""


def at(where: str, form: str) -> str:
    """Name of a parameter."""
    return f"{where}/{form}"


def place(row: PhoneRow) -> str:
    """A chip under a class of engines."""
    return f"{row.engine}@{row.soc}"


def parameters(fitted: Sequence[PhoneRow], known: Sequence[PhoneRow]) -> tuple[Parameter, ...]:
    """Parameters of processors, of classes and of the chips that rows were fitted on.

    Args:
        fitted: rows that the fit sees.
        known: rows whose classes need numbers; a class without fitted rows has its processor's.
    """
    found: list[Parameter] = []
    numbers = class_specification().numbers

    def add(where: str, number: ClassNumber, level: int, parent: str = "") -> None:
        low, high = number.between
        width = number.widths[level]
        found.append(Parameter(at(where, number.name), number.first, low, high, parent, width))

    for processor in sorted({row.processor for row in known}):
        for number in numbers:
            add(processor, number, 0)
    for engine, processor in sorted({(row.engine, row.processor) for row in known}):
        for number in numbers:
            add(engine, number, 1, at(processor, number.name))
    for where, engine in sorted({(place(row), row.engine) for row in fitted}):
        for number in numbers:
            if number.widths[2]:
                add(where, number, 2, at(engine, number.name))
    return tuple(found)


class PassSeconds:
    """Seconds of many forward passes from parameter values, at once."""

    def __init__(
        self, measured: Sequence[Quantity], names: Sequence[str], factors: Mapping[str, float] | None = None
    ) -> None:
        """Arrange the work of the passes.

        Args:
            measured: what was measured.
            names: the parameters that exist.
            factors: on data sheets' facts, by `CHIP/bandwidth` and `CHIP/PROCESSOR`; 1 for others.
        """
        given, scaled = class_specification(), factors or {}
        exist = {name: i for i, name in enumerate(names)}
        works = [work(one) for one in measured]
        self._rows = np.array(
            [float(pad(one.row.engine, w.rows)) for one, w in zip(measured, works, strict=True)]
        )
        self._launches = np.array([w.launches for w in works])
        self._flops = np.array([w.flops / w.rows for w in works]) * self._rows
        self._bytes = np.array([w.bytes for w in works])
        self._head_flops = np.array([w.head_flops for w in works])
        self._head_bytes = np.array([w.head_bytes for w in works])
        self._embed_bytes = np.array([w.embed_bytes for w in works])
        self._added = np.array([one.row.processor in given.added for one in measured])
        self._bus = np.array(
            [bandwidth(one.row.soc) * scaled.get(f"{one.row.soc}/bandwidth", 1.0) for one in measured]
        )
        self._peak = np.array(
            [
                peaks(one.row.soc, one.row.processor, one.row.threads)[w.precision]
                * scaled.get(f"{one.row.soc}/{one.row.processor}", 1.0)
                for one, w in zip(measured, works, strict=True)
            ]
        )
        self._weight = np.clip((self._rows - 1) / (given.full_rows - 1), 0.0, 1.0)
        self._node_positions = {
            name: np.array([exist[_home(one.row, name, exist)] for one in measured], dtype=int)
            for name in ("start", "start_exponent", "token", "bandwidth_share", "rate", "single_rate")
        }
        self._factor = np.array(
            [
                -1 if w.precision == "int8" else exist[at(one.row.engine, RATE_OF.format(w.precision))]
                for one, w in zip(measured, works, strict=True)
            ],
            dtype=int,
        )

    def __call__(self, values: Vector) -> Vector:
        """Seconds of each pass, `[passes]`, from parameter values in the order of their names."""
        of = {name: values[places] for name, places in self._node_positions.items()}
        factor = np.where(self._factor < 0, 1.0, values[self._factor])
        many, one = of["rate"] * factor, of["single_rate"] * factor
        rate = self._peak * (one + (many - one) * self._weight)
        bus = self._bus * of["bandwidth_share"]
        layers = self._both(self._flops / rate, self._bytes / bus)
        head = self._both(self._head_flops / (self._peak * one), self._head_bytes / bus)
        # embedding, layers, output projection: a start for each launch, which grows with the op's own rows
        started = (self._launches - 1) * self._rows ** of["start_exponent"] + 1
        seconds: Vector = of["token"] + of["start"] * started + layers + head + self._embed_bytes / bus
        return seconds

    def _both(self, computing: Vector, moving: Vector) -> Vector:
        """Seconds of computing and moving bytes."""
        return np.where(self._added, computing + moving, np.maximum(computing, moving))


def _home(row: PhoneRow, name: str, exist: Collection[str]) -> str:
    """The parameter that a row reads: its chip's if there is one, else its class's."""
    own = at(place(row), name)
    return own if own in exist else at(row.engine, name)


def pad(engine: str, rows: int) -> int:
    """Rows that a class computes for `rows` rows."""
    shapes = class_specification().shapes.get(engine)
    if not shapes:
        return rows
    fitting = [shape for shape in shapes if shape >= rows]
    return min(fitting) if fitting else ceil(rows / max(shapes)) * max(shapes)
