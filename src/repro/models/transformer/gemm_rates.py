"""Measured speed of this machine's matmuls, by storage format and number of rows, and a summary of it.

Owns which kernels belong to which arithmetic, and the fit of the rates. Must not know about device files.
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
"""Arithmetics with unquantized weights."""
INT_MM_LEAST = 17
"""Minimum number of rows for `torch._int_mm`."""
WRONG = (RuntimeError, NotImplementedError, AttributeError)
"""Exceptions torch raises for a kernel missing in this build or on this device."""


@dataclass(frozen=True)
class GemmKernel:
    """One matmul kernel for a stored weight.

    Attributes:
        name: storage format.
        arithmetic: precision under which operations are billed: `fp32`, `fp16` (any 16 bits) or `int8`.
        bits: bits per stored weight, without scales.
        rows: dtype of the input.
        make: creates the product from a weight, fp32 `[outputs, inputs]`.
        least: minimum number of rows.
    """

    name: str
    arithmetic: str
    bits: int
    rows: torch.dtype
    make: Callable[[Tensor], Product]
    least: int = 1


class Measured(NamedTuple):
    """One measured product: seconds for `rows` rows, its operations, and the bytes of weights it reads."""

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
    """Settings of a measurement.

    Attributes:
        seconds: time per data point.
        rows: numbers of rows to measure.
        outputs: output features of the weight.
        inputs: input features of the weight.
        footprint: total bytes of the weights used in turn; should exceed the processor's caches.
    """

    seconds: float
    rows: tuple[int, ...]
    outputs: int
    inputs: int
    footprint: int


def kernels(device: torch.device) -> Iterator[GemmKernel]:
    """The candidate kernels of a device."""
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
    """Time every kernel for every number of rows; `say` gets a line per result and per missing kernel."""
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
    """Copies of a product with separate weights, enough of them that the next weight is not in a cache."""
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
    """A function that waits until the device has finished all queued work."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def read_bandwidth(device: torch.device, footprint: int, seconds: float) -> float:
    """Memory read bandwidth in bytes per second, from a sum over `footprint` bytes."""
    x = torch.ones(footprint // 4, device=device)
    wait = _waiting(device)
    return x.nbytes / seconds_each(lambda: (x.sum(), wait()), seconds)


def copy_bandwidth(device: torch.device, footprint: int, seconds: float) -> float:
    """Copy bandwidth in bytes per second, reads plus writes, of `footprint` bytes."""
    x = torch.ones(footprint // 4, device=device)
    y = torch.empty_like(x)
    wait = _waiting(device)
    return 2 * x.nbytes / seconds_each(lambda: (y.copy_(x), wait()), seconds)


@dataclass(frozen=True)
class Rates:
    """A processor's matmul rates for the cost model.

    For each arithmetic and number of rows only the fastest kernel counts, as a decoder would choose it.

    Attributes:
        bandwidth: bytes of weights per second of dense products with the fewest rows; median of the kernels.
        peaks: peak operations per second by arithmetic, with the kernel that reaches it.
        efficiency: share of the peak by rows: one curve for all arithmetics, fitted to the measured times,
            with modeled compute time never decreasing in the number of rows.
    """

    bandwidth: float
    peaks: dict[str, tuple[float, str]]
    efficiency: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, measured: Sequence[Measured]) -> Rates:
        """Fit the rates to measured products; those with the fewest rows should be memory-bound."""
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
        """The cost model's time of a product at a given efficiency."""
        return max(m.flops / (self.peaks[m.arithmetic][0] * efficiency), m.bytes / self.bandwidth)

    def worst(self, measured: Sequence[Measured]) -> float:
        """The largest ratio, in either direction, between a measured time and the cost model's."""
        curve = dict(self.efficiency)
        errors = [log(self.seconds(m, curve[m.rows]) / m.seconds) for m in fastest(measured)]
        return exp(max(map(abs, errors)))

    def _nearest(self, products: Sequence[Measured]) -> float:
        """The efficiency with the least squared log error; the smallest of them if memory-bound."""
        grid = [exp(log(1e-4) * (1 - i / GRID)) for i in range(GRID + 1)]
        errors = [sum(log(self.seconds(m, e) / m.seconds) ** 2 for m in products) for e in grid]
        return grid[errors.index(min(errors))]


def _rising(curve: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """The curve with efficiencies raised so that fewer rows never take longer than more rows."""
    out = [curve[-1]]
    for rows, share in reversed(curve[:-1]):
        wider, reached = out[0]
        out.insert(0, (rows, max(share, reached * rows / wider)))
    return tuple(out)


GRID = 1000
"""Number of efficiencies tried from 0.0001 to 1, evenly spaced in the logarithm: steps of 1%."""


def fastest(measured: Sequence[Measured]) -> list[Measured]:
    """The fastest kernel for each arithmetic and number of rows."""
    best: dict[tuple[str, int], Measured] = {}
    for m in measured:
        known = best.setdefault((m.arithmetic, m.rows), m)
        if m.seconds < known.seconds:
            best[m.arithmetic, m.rows] = m
    return list(best.values())
