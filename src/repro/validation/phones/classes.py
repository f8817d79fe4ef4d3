"""The numbers of a class of engines, and the seconds of a pass that they give on a chip.

Owns the closed form of a pass in memory: the emulator's own cost (`device.cost`) of three ops that follow one
another, with computing and moving bytes added. A test shows that both agree. Must not know what is measured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from repro.fitting.problem import Parameter, Vector
from repro.validation.phones.chips import bandwidth, peaks
from repro.validation.phones.quantities import Quantity, work
from repro.validation.phones.rows import PhoneRow

SHAPES = {"qnn_npu": (1, 128), "ax_llm_npu": (1, 128), "llama_cpp_npu": (1, 32)}
"""Row counts that a class computes: AI Hub's and AX-LLM's graphs take 1 or 128 tokens; llama.cpp on Hexagon
computes one row on the vector units and blocks of 32 on the matrix unit."""

FULL_ROWS = 128
"""Rows from which on a class reaches its rate; below, its efficiency is interpolated to that of one row."""


ADDED = ("gpu", "npu")
"""Processors whose engines compute and move bytes one after the other; on a CPU both overlap."""


@dataclass(frozen=True)
class Form:
    """How one number of a class may vary.

    Attributes:
        name: its name.
        first: centre, chosen before any fit.
        low: lower bound.
        high: upper bound.
        widths: standard deviations of the priors, in units of the natural logarithm: of a processor's number
            around `first`, of a class's around its processor's, of a chip's around its class's; 0 if a chip
            has none.
    """

    name: str
    first: float
    low: float
    high: float
    widths: tuple[float, float, float]


FORMS = (
    Form("start", 3e-5, 1e-7, 5e-3, (1.5, 1.0, 0.0)),
    Form("start_exponent", 0.5, 0.05, 2.0, (1.0, 0.5, 0.0)),
    Form("token", 1e-3, 1e-6, 0.1, (1.5, 1.0, 0.5)),
    Form("bandwidth_share", 0.6, 0.02, 1.0, (1.0, 0.5, 0.3)),
    Form("rate", 0.2, 1e-3, 1.0, (1.0, 0.5, 0.3)),
    Form("single_rate", 0.2, 1e-3, 1.0, (1.0, 0.5, 0.3)),
)
"""Start of a launch (s) and its growth with rows, overhead of a token (s), shares of the bus and of the peak
at many rows and at one row."""

PRECISION_FACTOR = "rate.{}"
"""Rate of fp16 or fp32 arithmetic over that of int8, each as a share of its own peak."""

FACTOR_WIDTH = 0.5


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

    def add(where: str, form: Form, level: int, parent: str = "") -> None:
        found.append(
            Parameter(at(where, form.name), form.first, form.low, form.high, parent, form.widths[level])
        )

    factors = [
        Form(PRECISION_FACTOR.format(p), 1.0, 0.02, 20.0, (FACTOR_WIDTH, FACTOR_WIDTH, 0.0))
        for p in ("fp16", "fp32")
    ]
    for processor in sorted({row.processor for row in known}):
        for form in (*FORMS, *factors):
            add(processor, form, 0)
    for engine, processor in sorted({(row.engine, row.processor) for row in known}):
        for form in (*FORMS, *factors):
            add(engine, form, 1, at(processor, form.name))
    for where, engine in sorted({(place(row), row.engine) for row in fitted}):
        for form in FORMS:
            if form.widths[2]:
                add(where, form, 2, at(engine, form.name))
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
        scaled = factors or {}
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
        self._added = np.array([one.row.processor in ADDED for one in measured])
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
        self._weight = np.clip((self._rows - 1) / (FULL_ROWS - 1), 0.0, 1.0)
        self._places = {
            form.name: np.array([exist[_home(one.row, form, exist)] for one in measured], dtype=int)
            for form in FORMS
        }
        self._factor = np.array(
            [
                -1
                if w.precision == "int8"
                else exist[at(one.row.engine, PRECISION_FACTOR.format(w.precision))]
                for one, w in zip(measured, works, strict=True)
            ],
            dtype=int,
        )

    def __call__(self, values: Vector) -> Vector:
        """Seconds of each pass, `[passes]`, from parameter values in the order of their names."""
        of = {name: values[places] for name, places in self._places.items()}
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


def _home(row: PhoneRow, form: Form, exist: Collection[str]) -> str:
    """The parameter that a row reads: its chip's if there is one, else its class's."""
    own = at(place(row), form.name)
    return own if form.widths[2] and own in exist else at(row.engine, form.name)


def pad(engine: str, rows: int) -> int:
    """Rows that a class computes for `rows` rows."""
    shapes = SHAPES.get(engine)
    if not shapes:
        return rows
    fitting = [shape for shape in shapes if shape >= rows]
    return min(fitting) if fitting else ceil(rows / max(shapes)) * max(shapes)
