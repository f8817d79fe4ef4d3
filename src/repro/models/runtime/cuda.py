"""The GPU of this machine as `device.local` wants it: points in the stream that kernels are launched on.

Knows CUDA (and ROCm, which torch calls by the same name). Knows nothing of models or ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repro.core.late import late

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")


class CudaEvent:
    """A point in the current stream."""

    def __init__(self) -> None:
        """Mark the present end of what was launched."""
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record()

    def wait(self) -> None:
        """Block the calling thread, without Python's lock, until all that was launched before is done."""
        self._event.synchronize()

    def seconds_since(self, earlier: CudaEvent) -> float:
        """Seconds on the GPU's clock between two points that have passed."""
        return float(earlier._event.elapsed_time(self._event)) / 1e3


class CudaStream:
    """The stream that the calling thread launches kernels on."""

    def record(self) -> CudaEvent:
        """Mark the present end of what was launched."""
        return CudaEvent()


def cuda_stream() -> CudaStream | None:
    """The stream of this machine's GPU; `None` without one, which `device.local.local_device` refuses."""
    return CudaStream() if torch.cuda.is_available() else None
