"""Worker threads that wait for a disk or a GPU while the loop's thread computes.

Must not know ops. A worker must never call a torch kernel: two threads that do halve each other's speed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from queue import PriorityQueue
from threading import Thread

Job = Callable[[], object]
_FIRST_PRIORITY = float("-inf")


class Workers:
    """Threads that serve one queue: lowest priority number first, then in first-come order.

    They start with the first job, take the next one without the event loop, and stop with `close`.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._names = [f"{name}-{i}" for i in range(threads)]
        self._order = count()
        self._jobs: PriorityQueue[tuple[float, int, Job | None]] = PriorityQueue()
        self._threads: list[Thread] = []

    def put(self, job: Job, priority: float = 0) -> None:
        """Queue a job, which must not raise."""
        if not self._threads:
            self._start()
        self._jobs.put((priority, next(self._order), job))

    def close(self) -> None:
        """Finish running jobs, drop waiting ones, and join the threads."""
        for _ in self._threads:
            self._jobs.put((_FIRST_PRIORITY, next(self._order), None))
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._jobs = PriorityQueue()

    def _start(self) -> None:
        self._threads = [Thread(target=self._serve, name=name, daemon=True) for name in self._names]
        for thread in self._threads:
            thread.start()

    def _serve(self) -> None:
        while (job := self._jobs.get()[2]) is not None:
            job()
