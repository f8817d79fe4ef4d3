"""A coroutine scheduler with two clocks, virtual and wall.

Must not know devices or models. A virtual clock jumps to the next event; a wall clock runs the work that is
queued for its own thread and sleeps until a worker reports a completion.
"""

from __future__ import annotations

import heapq
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Wake = Callable[[], None]


class Cancelled(Exception):
    """Raised when awaiting a cancelled task."""


class Deadlock(RuntimeError):
    """Every task waits, and no pending event or work could wake one."""


class Future(Generic[T]):
    """A future value; awaited by tasks, set once by a device or a task."""

    __slots__ = ("_value", "_waiters", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self._value: T | None = None
        self.error: BaseException | None = None
        self._waiters: list[Wake] = []

    def set(self, value: T) -> None:
        """Complete with a value and wake the waiters in first-come order."""
        self._value = value
        self.done = True
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    def fail(self, error: BaseException) -> None:
        """Complete with an error, which is raised in all waiters."""
        self.error = error
        self.done = True
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    def result(self) -> T:
        """The value of a completed future; raises its error."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]

    def __await__(self) -> Generator[Future[T], None, T]:
        if not self.done:
            yield self
        return self.result()

    @property
    def has_waiters(self) -> bool:
        """Whether anybody waits for it."""
        return bool(self._waiters)

    def on_done(self, wake: Wake) -> None:
        """Call `wake` when the future completes."""
        self._waiters.append(wake)


class Task(Future[T]):
    """A running coroutine. The constructor runs it to its first wait; awaiting it returns its result."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Future[Any], None, T]) -> None:
        super().__init__()
        self._coroutine = coroutine
        self._step()

    def cancel(self) -> None:
        """Stop the coroutine at its current wait. Ops that it has queued still run; results are dropped."""
        if self.done:
            return
        self._coroutine.close()
        self.fail(Cancelled())

    def _step(self) -> None:
        if self.done:
            return
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as stop:
            self.set(stop.value)
        except Exception as error:
            self.fail(error)
        else:
            awaited.on_done(self._step)


class Clock(ABC):
    """Seconds since the start, and the events of a loop."""

    kind: str

    @property
    @abstractmethod
    def now(self) -> float:
        """Seconds since the clock was made."""

    @abstractmethod
    def next_event(self) -> Wake:
        """The next event; blocks until there is one."""


class VirtualClock(Clock):
    """Discrete-event time. Simultaneous events run in the order in which they were scheduled."""

    kind = "virtual"

    def __init__(self) -> None:
        self._now = 0.0
        self._events: list[tuple[float, int, Wake]] = []
        self._order = count()

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def after(self, seconds: float, wake: Wake) -> None:
        """Call `wake` once `seconds` have passed."""
        heapq.heappush(self._events, (self._now + seconds, next(self._order), wake))

    def next_event(self) -> Wake:
        """See `Clock`."""
        if not self._events:
            raise Deadlock("a task waits for work that nobody submitted")
        self._now, _, wake = heapq.heappop(self._events)
        return wake


class WallClock(Clock):
    """Real time. Worker threads report completions; queued inline work runs on the loop's own thread.

    All torch kernels run inline: a second thread that calls torch halves the speed of both.
    """

    kind = "wall"

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._reports: SimpleQueue[Wake] = SimpleQueue()
        self._inline: list[tuple[int, int, Wake]] = []
        self._order = count()
        self._outstanding = 0

    @property
    def now(self) -> float:
        """Seconds since the clock was made."""
        return time.perf_counter() - self._start

    def inline(self, work: Wake, priority: int = 0) -> None:
        """Queue work for the loop's thread: lowest priority number first, then in first-come order."""
        heapq.heappush(self._inline, (priority, next(self._order), work))

    def submit(self, work: Callable[[], Wake], put: Callable[[Wake], Any]) -> None:
        """Pass work to a worker through `to`; the callable that it returns runs on the loop's thread.

        An exception in the work is raised by `run`, which would otherwise wait forever.
        """
        self._outstanding += 1
        put(lambda: self._reports.put(_attempt(work)))

    def wait_until(self, moment: float) -> None:
        """Block the calling thread until the clock reaches `moment`."""
        while (remaining := moment - self.now) > 0:
            time.sleep(remaining)

    def next_event(self) -> Wake:
        """See `Clock`; workers' reports come before inline work."""
        is_blocking = not self._inline
        if is_blocking and not self._outstanding:
            raise Deadlock("a task waits for work that nobody submitted")
        try:
            wake = self._reports.get(is_blocking)
        except Empty:
            return heapq.heappop(self._inline)[2]
        self._outstanding -= 1
        return wake


def _attempt(work: Callable[[], Wake]) -> Wake:
    try:
        return work()
    except BaseException as error:
        return partial(_raise, error)


def _raise(error: BaseException) -> None:
    raise error
