"""How fast this machine's linears are, by storage format and rows, and the few numbers that say it shortly.

Owns which kernels stand for which arithmetic. Knows nothing of device files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from math import exp, log
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from repro.device.measure import seconds_each
from repro.models.transformer.linear import PlainLinear, packed
from repro.models.transformer.quantize import int4_linear, int8_linear

Product = Callable[[Tensor], object]

DENSE = ("fp32", "fp16")
"""Arithmetics whose products read weights as they are stored."""
INT_MM_LEAST = 17
"""Rows that torch's 8-bit product wants at least."""
WRONG = (RuntimeError, NotImplementedError, AttributeError)
"""What torch raises for a kernel that this build or this device does not have."""


@dataclass(frozen=True)
class GemmKernel:
    """One way to multiply rows by a stored weight.

    Attributes:
        name: of the storage format.
        arithmetic: the precision under which ops are billed: `fp32`, `fp16` (any 16 bits) or `int8`.
        bits: of a stored weight, scales left out.
        rows: the type of the rows that it takes.
        make: the product with a weight, fp32 `[outputs, inputs]`.
        least: rows that it takes at least.
    """

    name: str
    arithmetic: str
    bits: int
    rows: torch.dtype
    make: Callable[[Tensor], Product]
    least: int = 1


class Measured(NamedTuple):
    """One product: seconds for `rows` rows, its operations, and the bytes of weights that it reads."""

    kernel: str
    arithmetic: str
    rows: int
    seconds: float
    flops: float
    bytes: float

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.flops / self.seconds


@dataclass(frozen=True)
class Effort:
    """How thoroughly to measure.

    Attributes:
        seconds: spent on each point.
        rows: that products are measured for.
        outputs: of the weight.
        inputs: of the weight.
        footprint: bytes of weights used in turn, which should exceed all caches.
    """

    seconds: float
    rows: tuple[int, ...]
    outputs: int
    inputs: int
    footprint: int


def kernels(device: torch.device) -> Iterator[GemmKernel]:
    """The kernels that a device may have."""
    for name, arithmetic in (("float32", "fp32"), ("bfloat16", "fp16"), ("float16", "fp16")):
        kind = getattr(torch, name)
        make = _plain if kind == torch.float16 else _packed
        yield GemmKernel(name, arithmetic, 8 * kind.itemsize, kind, partial(make, kind))
    yield GemmKernel("int8 x int8", "int8", 8, torch.int8, _int8, INT_MM_LEAST)
    if device.type == "cpu":
        yield GemmKernel("int8 weights", "int8", 8, torch.bfloat16, int8_linear)
        yield GemmKernel("int4 weights", "int8", 4, torch.bfloat16, int4_linear)


def _plain(kind: torch.dtype, weight: Tensor) -> PlainLinear:
    return PlainLinear(weight.to(kind, copy=True))


def _packed(kind: torch.dtype, weight: Tensor) -> Product:
    return packed(_plain(kind, weight))


def _int8(weight: Tensor) -> Product:
    codes = (weight * 127).to(torch.int8).t()
    return lambda x: torch._int_mm(x, codes)


def measure_products(device: torch.device, effort: Effort, say: Callable[[str], None]) -> Iterator[Measured]:
    """Time every kernel for every number of rows; `say` hears what is found, and what this torch lacks."""
    for kernel in kernels(device):
        try:
            products = _products(kernel, device, effort)
            for rows in effort.rows:
                if rows >= kernel.least:
                    found = _measure(kernel, products, rows, device, effort)
                    say(_line(found))
                    yield found
        except WRONG as missing:
            say(f"  {kernel.name:13} not on this machine: {str(missing).splitlines()[0]}")


def _line(m: Measured) -> str:
    rates = f"{m.rate / 1e9:9.1f} GFLOP/s {m.bytes / m.seconds / 1e9:8.1f} GB/s of weights"
    return f"  {m.kernel:13} {m.rows:4} rows {m.seconds * 1e3:9.3f} ms {rates}"


def _products(kernel: GemmKernel, device: torch.device, effort: Effort) -> list[Product]:
    """Equal products over so many weights that the next one is in no cache."""
    weight = torch.rand(effort.outputs, effort.inputs, device=device) - 0.5
    stored = weight.numel() * kernel.bits / 8
    return [kernel.make(weight) for _ in range(max(1, round(effort.footprint / stored)))]


def _measure(
    kernel: GemmKernel, products: Sequence[Product], rows: int, device: torch.device, effort: Effort
) -> Measured:
    x = (torch.rand(rows, effort.inputs, device=device) * 100).to(kernel.rows)
    turn = cycle(products)
    wait = _waiting(device)

    def work() -> None:
        next(turn)(x)
        wait()

    weights = effort.outputs * effort.inputs
    seconds = seconds_each(work, effort.seconds, least=min(len(products), 5))
    return Measured(
        kernel.name, kernel.arithmetic, rows, seconds, 2.0 * rows * weights, weights * kernel.bits / 8
    )


def _waiting(device: torch.device) -> Callable[[], None]:
    """Waits until the device has done all that it was asked."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def read_bandwidth(device: torch.device, footprint: int, seconds: float) -> float:
    """Bytes per second of reading memory and nothing else: a sum over `footprint` bytes."""
    x = torch.ones(footprint // 4, device=device)
    wait = _waiting(device)
    return x.nbytes / seconds_each(lambda: (x.sum(), wait()), seconds)


def copy_bandwidth(device: torch.device, footprint: int, seconds: float) -> float:
    """Bytes per second, read and written, of copying `footprint` bytes."""
    x = torch.ones(footprint // 4, device=device)
    y = torch.empty_like(x)
    wait = _waiting(device)
    return 2 * x.nbytes / seconds_each(lambda: (y.copy_(x), wait()), seconds)


@dataclass(frozen=True)
class Rates:
    """What the cost model wants to know of a processor's products.

    Of one arithmetic the fastest kernel counts at each number of rows, as a decoder chooses it.

    Attributes:
        bandwidth: bytes per second of weights that dense products of the fewest rows read; kernels' median.
        peaks: operations per second by arithmetic, with the kernel that reaches them.
        efficiency: share of the peak by rows: one curve for all, whose times are nearest the measured ones,
            and on which no wider pass is cheaper than a narrower one.
    """

    bandwidth: float
    peaks: dict[str, tuple[float, str]]
    efficiency: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, measured: Sequence[Measured]) -> Rates:
        """The rates that fit measured products; at the fewest rows these should be bound by memory."""
        best = fastest(measured)
        fewest = min(m.rows for m in measured)
        bandwidth = median(
            m.bytes / m.seconds for m in measured if m.rows == fewest and m.arithmetic in DENSE
        )
        peaks: dict[str, tuple[float, str]] = {}
        for m in best:
            if m.rate > peaks.get(m.arithmetic, (0.0, ""))[0]:
                peaks[m.arithmetic] = m.rate, m.kernel
        rates = cls(bandwidth, peaks, ())
        rows = sorted({m.rows for m in best})
        curve = [(r, rates._nearest([m for m in best if m.rows == r])) for r in rows]
        return cls(bandwidth, peaks, _rising(curve))

    def seconds(self, m: Measured, efficiency: float) -> float:
        """What the cost model says of a product at an efficiency."""
        return max(m.flops / (self.peaks[m.arithmetic][0] * efficiency), m.bytes / self.bandwidth)

    def worst(self, measured: Sequence[Measured]) -> float:
        """The largest factor, up or down, between a kernel's time and what the cost model says of it."""
        curve = dict(self.efficiency)
        errors = [log(self.seconds(m, curve[m.rows]) / m.seconds) for m in fastest(measured)]
        return exp(max(map(abs, errors)))

    def _nearest(self, products: Sequence[Measured]) -> float:
        """The efficiency with the least squared error of logarithms; the smallest if memory decides."""
        grid = [exp(log(1e-4) * (1 - i / GRID)) for i in range(GRID + 1)]
        errors = [sum(log(self.seconds(m, e) / m.seconds) ** 2 for m in products) for e in grid]
        return grid[errors.index(min(errors))]


def _rising(curve: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """The curve with rows that were measured to cost more than wider ones made as cheap as those."""
    out = [curve[-1]]
    for rows, share in reversed(curve[:-1]):
        wider, reached = out[0]
        out.insert(0, (rows, max(share, reached * rows / wider)))
    return tuple(out)


GRID = 1000
"""Efficiencies from 0.0001 to 1 that are tried, evenly in their logarithm: steps of 1%."""


def fastest(measured: Sequence[Measured]) -> list[Measured]:
    """Of each arithmetic and number of rows the kernel that takes least."""
    best: dict[tuple[str, int], Measured] = {}
    for m in measured:
        known = best.setdefault((m.arithmetic, m.rows), m)
        if m.seconds < known.seconds:
            best[m.arithmetic, m.rows] = m
    return list(best.values())
