"""CUDA events and streams for `device.local`.

Knows CUDA (and ROCm, which torch exposes under the same name). Knows nothing of models or ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.core.late import late

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")


class CudaEvent:
    """An event recorded on the current stream."""

    def __init__(self) -> None:
        """Record an event after all kernels launched so far."""
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record()

    def wait(self) -> None:
        """Block the calling thread, with the GIL released, until all earlier kernels are done."""
        self._event.synchronize()

    def seconds_since(self, earlier: CudaEvent) -> float:
        """Seconds of GPU time between two completed events."""
        return float(earlier._event.elapsed_time(self._event)) / 1e3


class CudaStream:
    """The current stream of the calling thread."""

    def record(self) -> CudaEvent:
        """Record an event after all kernels launched so far."""
        return CudaEvent()


def cuda_stream() -> CudaStream | None:
    """The GPU's stream; `None` without a GPU, which `device.local.local_device` refuses."""
    return CudaStream() if torch.cuda.is_available() else None
