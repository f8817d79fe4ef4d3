"""CUDA events, streams and graphs for `device.local` and the passes that run on it.

Knows CUDA (and ROCm, which torch exposes under the same name). Knows nothing of models or ops.
"""

from __future__ import annotations

from collections.abc import Callable

from repro.libraries import torch

Work = Callable[[], None]


class CudaEvent:
    """An event recorded on the current stream."""

    def __init__(self) -> None:
        """Record an event after all kernels launched so far."""
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record()

    def wait(self) -> None:
        """Block the calling thread, with the GIL released, until all earlier kernels are done."""
        self._event.synchronize()

    def seconds_since(self, earlier_event: CudaEvent) -> float:
        """Seconds of GPU time between two completed events."""
        return float(earlier_event._event.elapsed_time(self._event)) / 1e3


class CudaStream:
    """The current stream of the calling thread."""

    def record(self) -> CudaEvent:
        """Record an event after all kernels launched so far."""
        return CudaEvent()


def cuda_stream() -> CudaStream | None:
    """The GPU's stream; `None` without a GPU, which `device.local.local_device` refuses."""
    return CudaStream() if torch.cuda.is_available() else None


def cuda_uuid() -> str:
    """The GPU's name for NVIDIA's library; "" without a GPU."""
    if not torch.cuda.is_available():
        return ""
    return f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"


class GraphRecorder:
    """Records the kernels of functions in CUDA graphs, whose memory they share."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Work) -> Work:
        """A function that does the same on the GPU in one launch, on the same memory.

        The function runs once before: kernels are chosen and workspaces taken outside of the graph.
        """
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # The thread that waits for earlier ops may go on meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            work()
        return graph.replay


def as_it_is(work: Work) -> Work:
    """The function itself, where there is nothing to record it."""
    return work
