"""Memory bandwidth of this machine, and the kernel of its self-test.

Owns what is timed. Must not know files.
"""

from __future__ import annotations

from collections.abc import Callable

from repro.device.probing.measure import seconds_each
from repro.libraries import torch

FOOTPRINT = 256 << 20
"""Bytes that are read or copied: more than caches hold."""


def waiting(device: torch.device) -> Callable[[], object]:
    """A function that waits until the device has done what it was given."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def read_bandwidth(device: torch.device, footprint: int = FOOTPRINT, seconds: float = 0.3) -> float:
    """Bytes per second of reading `footprint` bytes, as a sum."""
    x = torch.ones(footprint // 4, device=device)
    wait = waiting(device)
    return x.nbytes / seconds_each(lambda: (x.sum(), wait()), seconds)


def memory_bandwidth(on: str = "cpu", footprint: int = FOOTPRINT, seconds: float = 0.3) -> float:
    """Bytes per second that memory gives: reading or copying, whichever is faster."""
    device = torch.device(on)
    wait = waiting(device)
    x = torch.ones(footprint // 4, device=device)
    y = torch.empty_like(x)
    copying = seconds_each(lambda: (y.copy_(x), wait()), seconds)
    return max(read_bandwidth(device, footprint, seconds), 2 * x.nbytes / copying)


def quiet_kernel() -> Callable[[], object]:
    """A product whose weights come from memory, some ten milliseconds long: a busy machine slows it down."""
    x, weight = torch.randn(4, 2048), torch.randn(8192, 2048)
    return lambda: x @ weight.t()
