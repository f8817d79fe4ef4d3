"""The numbers of a class of engines, and the seconds of a pass that they give on a chip.

Owns the closed form of a pass in memory: the emulator's own cost (`device.cost`) of three ops that follow one
another. A test shows that both agree. Must not know what is measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from repro.device.cost import FULL_ROWS
from repro.device.engines.bands import FOUR_BITS
from repro.models.costs.model_cost import PRECISIONS
from workshop.validation.phones.chips import bandwidth, peaks, processor_of
from workshop.validation.phones.class_specification import class_specification
from workshop.validation.phones.quantities import Quantity, work

Vector = NDArray[np.float64]

BUILD = re.compile(r"(.+)_(\d{4}_\d{2})")
"""A class of an older build: its class and a month."""

ARITHMETIC, ONE, MANY = "arithmetic", "one", "many"
"""Factors: on both rates in an arithmetic other than int8; on a format's rate over one row, and over many."""

STEP = 1e-5
"""Of a number's logarithm, for its derivative."""


def class_of(engine: str) -> str:
    """The class of an older build; any other engine itself."""
    build = BUILD.fullmatch(engine)
    return build[1] if build else engine


def computes(engine: str, storage_format: str) -> str:
    """The class that computes a format: another one where the engine has no kernel for it."""
    given = class_specification()
    return given.instead if storage_format in given.unsupported.get(class_of(engine), ()) else engine


@dataclass(frozen=True)
class LogTerm:
    """One fitted logarithm: how far a number deviates from the one above it.

    Attributes:
        number: a class's number, or `ARITHMETIC`, `ONE` or `MANY` of a precision or a format.
        where: a processor, a class, a build, or `CLASS@CHIP`.
        width: standard deviation of its prior.
    """

    number: str
    where: str
    width: float


def log_terms(number: str, engine: str, chip: str) -> Iterator[LogTerm]:
    """Those whose sum, with the logarithm of where the search begins, is a number's logarithm on a chip."""
    given, family = class_specification(), class_of(engine)
    kind = number.partition(".")[0]
    if kind == ARITHMETIC:
        yield LogTerm(number, family, given.arithmetic)
    elif kind in (ONE, MANY):
        yield LogTerm(number, processor_of(family), given.formats[0])
        yield LogTerm(number, family, given.formats[1])
    else:
        widths = next(one.widths for one in given.numbers if one.name == number)
        yield LogTerm(number, processor_of(family), widths[0])
        yield LogTerm(number, family, widths[1])
        if engine != family:
            yield LogTerm(number, engine, given.builds)
        if widths[2] and chip:
            yield LogTerm(number, f"{family}@{chip}", widths[2])


def numbers_of(quantity: Quantity) -> tuple[str, ...]:
    """The numbers that a quantity's pass depends on."""
    precision, storage_format = work(quantity).precision, quantity.row.format
    own = [one.name for one in class_specification().numbers]
    if precision != "int8":
        return (*own, f"{ARITHMETIC}.{precision}")
    is_own = storage_format not in FOUR_BITS
    return (*own, f"{ONE}.{storage_format}", f"{MANY}.{storage_format}") if is_own else tuple(own)


class PassSeconds:
    """Seconds of many forward passes from terms of logarithms, at once."""

    def __init__(self, measured: Sequence[Quantity], names: Mapping[LogTerm, int]) -> None:
        """Arrange the work of the passes.

        Args:
            measured: what was measured.
            names: the place of each term that exists; others are 0.
        """
        given, works = class_specification(), [work(one) for one in measured]
        engines = [computes(one.row.engine, one.row.format) for one in measured]
        self.on = [processor_of(class_of(engine)) for engine in engines]
        self._rows = np.array([float(pad(e, w.rows)) for e, w in zip(engines, works, strict=True)])
        self._launches = np.array([w.launches for w in works])
        self._flops = np.array([w.flops / w.rows for w in works]) * self._rows
        self._bytes = np.array([w.bytes for w in works])
        self._head_flops = np.array([w.head_flops for w in works])
        self._head_bytes = np.array([w.head_bytes for w in works])
        self._embed_bytes = np.array([w.embed_bytes for w in works])
        self._added = np.array([processor in given.added for processor in self.on])
        rows = [one.row for one in measured]
        self._bus = np.array([bandwidth(row.soc, on) for row, on in zip(rows, self.on, strict=True)])
        rates = [
            peaks(row.soc, on, row.threads)[w.precision]
            for row, on, w in zip(rows, self.on, works, strict=True)
        ]
        self._many, self._one = np.array(rates).reshape(-1, 2).T
        self._weight = np.clip((self._rows - 1) / (FULL_ROWS - 1), 0.0, 1.0)
        self._entries: dict[str, list[tuple[int, int]]] = {}
        for i, (one, engine) in enumerate(zip(measured, engines, strict=True)):
            for number in numbers_of(one):
                kind = number.partition(".")[0]
                places = [names.get(d, -1) for d in log_terms(number, engine, one.row.soc)]
                self._entries.setdefault(kind, []).extend((i, place) for place in places if place >= 0)
        self._bounds = {one.name: np.log((one.first, *one.between)) for one in given.numbers}
        self._shape = len(measured), len(names)

    def logs(self, values: Vector) -> dict[str, Vector]:
        """The logarithm of each number of each pass, `[passes]`."""
        found = {kind: np.zeros(self._shape[0]) for kind in (*self._bounds, ARITHMETIC, ONE, MANY)}
        for kind, entries in self._entries.items():
            rows, places = np.array(entries, dtype=int).reshape(-1, 2).T
            np.add.at(found[kind], rows, values[places])
        for name, (first, low, high) in self._bounds.items():
            found[name] = np.clip(found[name] + first, low, high)
        return found

    def __call__(self, values: Vector) -> Vector:
        """Seconds of each pass, `[passes]`."""
        return self._seconds(self.logs(values))

    def jacobian(self, values: Vector) -> csr_matrix:
        """Derivatives of the logarithm of the seconds by each term, `[passes, terms]`."""
        logs = self.logs(values)
        seconds = self._seconds(logs)
        rows, places, slopes = [], [], []
        for kind, entries in self._entries.items():
            own_rows, own_places = np.array(entries, dtype=int).reshape(-1, 2).T
            moved = np.log(self._seconds({**logs, kind: logs[kind] + STEP}) / seconds) / STEP
            if kind in self._bounds:
                _, low, high = self._bounds[kind]
                moved = np.where((logs[kind] <= low) | (logs[kind] >= high), 0.0, moved)
            rows.append(own_rows)
            places.append(own_places)
            slopes.append(moved[own_rows])
        where = np.concatenate(rows), np.concatenate(places)
        return csr_matrix((np.concatenate(slopes), where), shape=self._shape)

    def _seconds(self, logs: Mapping[str, Vector]) -> Vector:
        of = {name: np.exp(log) for name, log in logs.items()}
        one = self._one * of["single_rate"] * of[ARITHMETIC] * of[ONE]
        many = self._many * of["rate"] * of[ARITHMETIC] * of[MANY]
        bus = self._bus * of["bandwidth_share"]
        layers = self._both(self._flops / (one + (many - one) * self._weight), self._bytes / bus)
        head = self._both(self._head_flops / one, self._head_bytes / bus)
        # embedding, layers, output projection: a start for each launch, which grows with the op's own rows
        started = (self._launches - 1) * self._rows ** of["start_exponent"] + 1
        seconds: Vector = of["token"] + of["start"] * started + layers + head + self._embed_bytes / bus
        return seconds

    def _both(self, computing: Vector, moving: Vector) -> Vector:
        """Seconds of computing and moving bytes."""
        return np.where(self._added, computing + moving, np.maximum(computing, moving))


def pad(engine: str, rows: int) -> int:
    """Rows that a class computes for `rows` rows."""
    shapes = class_specification().shapes.get(class_of(engine))
    if not shapes:
        return rows
    fitting = [shape for shape in shapes if shape >= rows]
    return min(fitting) if fitting else ceil(rows / max(shapes)) * max(shapes)


def formats_of(engine: str, known: Iterable[LogTerm]) -> list[str]:
    """Formats of which a class's fit says something, in the order of `PRECISIONS`."""
    family = class_of(engine)
    seen = {d.number.partition(".")[2] for d in known if d.where == family and d.number.startswith(f"{ONE}.")}
    return [name for name in PRECISIONS if name in seen]
